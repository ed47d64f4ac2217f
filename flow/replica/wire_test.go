package replica

import (
	"errors"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

type logEntry = log.Entry

func asWire(err error) *wire.Error { e, _ := errors.AsType[*wire.Error](err); return e }
