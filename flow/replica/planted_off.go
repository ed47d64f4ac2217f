//go:build !skeinplanted

package replica

import (
	"github.com/skeinmesh/skein/flow/log"
	"github.com/skeinmesh/skein/ring"
	pb "go.etcd.io/raft/v3/raftpb"
)

func (g *Group) plantWrite(*log.Write)   {}
func (g *Group) plantAppended(*appendOp) {}

func (g *Group) plantID(id ring.ReplicaID) ring.ReplicaID { return id }

func (g *Group) plantApplied(*applyRun, *pb.Entry) bool { return false }

func (g *Group) plantComplete(ps []*proposal) []*proposal { return ps }
