package virtual

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepTakesVirtualTimeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		Sleep(time.Hour)
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("slept %v", d)
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("slept in real time")
		}
	}()
	Sleep(time.Hour)
}
