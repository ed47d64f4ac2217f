package replica

import (
	"errors"
	"math/rand/v2"

	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/transport/wire"
)

type logEntry = log.Entry

func asWire(err error) *wire.Error { e, _ := errors.AsType[*wire.Error](err); return e }

// zeroSource makes a crash lose every unflushed commit.
type zeroSource struct{}

func (zeroSource) Uint64() uint64 { return 0 }

func fixedRand() *rand.Rand { return rand.New(zeroSource{}) }
