package chaos

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/skeinmesh/skein/testnet/impair"
)

// impaired joins the nodes by links that can be made as bad as one likes. The test is one more host, whose links stay good.
func (s *site) impaired(seed uint64) (links *impair.Net) {
	s.t.Helper()
	links = impair.New(seed)
	s.t.Cleanup(func() {
		if err := links.Close(); err != nil {
			s.t.Error(err)
		}
	})
	s.plug(func() error {
		if err := s.tunnel(links, s.tag, s.net+".254", ""); err != nil {
			return err
		}
		for i := range s.size {
			if err := run("ip", "netns", "add", s.ns(i)); err != nil {
				return err
			}
			if err := s.tunnel(links, s.ns(i), s.ip(i), "ip netns exec "+s.ns(i)+" "); err != nil {
				return err
			}
		}
		return nil
	})
	return links
}

// host is where node i is in the network.
func (s *site) host(i int) netip.Addr { return netip.MustParseAddr(s.ip(i)) }

// tunnel makes a device of that name and address whose packets pass through links, in the namespace in which the commands after in run.
func (s *site) tunnel(links *impair.Net, name, ip, in string) error {
	end, err := impair.OpenTUN(name)
	if err != nil {
		return err
	}
	links.Plug(netip.MustParseAddr(ip), end)
	if in != "" {
		if err := runAll("ip link set "+name+" netns "+name, in+"ip link set lo up"); err != nil {
			return err
		}
	}
	return runAll(in+"ip addr add "+ip+"/24 dev "+name, in+"ip link set "+name+" up")
}

// TestImpairedLinksLoseNothing: between the nodes, packets are late, lost, repeated, overtaken and damaged, each direction by itself, and
// now and then one direction carries nothing. Publishing goes on all the time, and what is acknowledged is read by everybody, in order.
func TestImpairedLinksLoseNothing(t *testing.T) {
	sd := seed(t)
	s := prepareSite(t, 3)
	links := s.impaired(sd)
	s.start()
	w := newWorld(t, s.servers(), 4)
	l := w.startLoad(sd, 6, 20*time.Millisecond)
	l.startReaders()
	l.watchOwners()
	rng := rand.New(rand.NewPCG(sd, 6<<32))
	rounds, lasts := 3, 2*time.Second
	if long() {
		rounds, lasts = 12, 10*time.Second
	}
	for round := range rounds {
		deaf, mute := -1, -1 // every third round, one direction of one link carries nothing
		if round%3 == 2 {
			deaf = rng.IntN(3)
			mute = (deaf + 1 + rng.IntN(2)) % 3
		}
		for from := range 3 {
			for to := range 3 {
				if from == to {
					continue
				}
				bad := badLink(rng)
				if from == mute && to == deaf {
					bad.Loss = 1
				}
				t.Logf("round %d: node %d to node %d: %v", round+1, from, to, bad)
				links.Set(s.host(from), s.host(to), bad)
			}
		}
		begin := time.Now()
		w.progress(100)
		l.readersProgress(100)
		pause(t.Context(), lasts-time.Since(begin))
	}
	links.Heal()
	healed := time.Now()
	until(t, healWithin, s.whole)
	t.Logf("the mesh is whole %d ms after healing; packets: %+v", time.Since(healed).Milliseconds(), links.Counts())
	w.progress(100)
	l.stopPublishing()
	l.finishReaders(w.readBack())
	w.verdict()
	for i, p := range s.nodes {
		if p.ended() {
			t.Errorf("node %d ended by itself", i)
		}
	}
	if c := links.Counts(); c.Lost == 0 || c.Duplicated == 0 || c.Damaged == 0 {
		t.Errorf("the links were better than asked for: %+v", c)
	}
}

// badLink is one over which packets get through with patience.
func badLink(rng *rand.Rand) impair.Link {
	return impair.Link{
		Delay:     time.Duration(rng.IntN(20)) * time.Millisecond,
		Jitter:    time.Duration(rng.IntN(20)) * time.Millisecond,
		Loss:      rng.Float64() / 20,
		Duplicate: rng.Float64() / 20,
		Damage:    rng.Float64() / 100,
	}
}
