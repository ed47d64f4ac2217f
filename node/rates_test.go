package node

import "testing"

func TestRateOfAnIdlePartitionEndsAtZero(t *testing.T) {
	rate, rounds := 1e9, 0
	for ; rate > 0 && rounds < 100; rounds++ {
		rate = smooth(rate, 0)
	}
	if rounds > 40 {
		t.Errorf("after %d rounds it is %g", rounds, rate)
	}
	if rate := smooth(0, 100); rate != 50 {
		t.Error(rate)
	}
}
