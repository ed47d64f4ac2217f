// Package virtual lets tests sleep in the virtual time of a testing/synctest bubble, and nowhere else.
package virtual

import "time"

// Sleep lets d of a bubble's time go by. Outside a bubble, where the time is real, it panics: wait for the event itself there, or poll.
func Sleep(d time.Duration) {
	if time.Now().Year() > 2020 { // a bubble's clock starts in 2000
		panic("virtual.Sleep: the time is real here; run the test in a testing/synctest bubble, wait for the event itself, or poll")
	}
	time.Sleep(d)
}
