package quicnet

import (
	"errors"
	"fmt"

	"github.com/quic-go/quic-go"

	"github.com/skeinmesh/skein/transport"
)

// TLS alerts (RFC 8446, section 6) as QUIC crypto errors (RFC 9001, section 4.8).
const (
	alertBadCertificate    = 0x100 + 42
	alertUnknownCA         = 0x100 + 48
	alertCertificateNeeded = 0x100 + 116
	alertNoProtocol        = 0x100 + 120
)

// translate turns quic-go's errors into the transport's own; others pass through.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*quic.StreamError](err); ok {
		return &transport.ResetError{Code: uint64(e.ErrorCode), Remote: e.Remote}
	}
	if e, ok := errors.AsType[*quic.ApplicationError](err); ok {
		return &transport.CloseError{Code: transport.CloseCode(e.ErrorCode), Reason: e.ErrorMessage, Remote: e.Remote}
	}
	e, ok := errors.AsType[*quic.TransportError](err)
	if !ok || errors.Is(err, transport.ErrOtherSecret) || errors.Is(err, transport.ErrCertificate) {
		return err
	}
	switch e.ErrorCode {
	case alertBadCertificate, alertUnknownCA:
		if e.Remote { // it says only that it could not verify our certificate
			return fmt.Errorf("%w, or its clock is far off: it refused our certificate", transport.ErrOtherSecret)
		}
	case alertCertificateNeeded:
		return fmt.Errorf("%w: no certificate was shown", transport.ErrCertificate)
	case alertNoProtocol:
		return transport.ErrNotSkein
	}
	return err
}
