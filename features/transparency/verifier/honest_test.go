package verifier_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"mlsd/features/transparency/verifier"
)

// A random honest service, whose database goes back now and then, is never accused by devices that
// read early and late, ask for heads, compare those of each other and hear of acknowledgements.
func TestRandomHonestServiceIsNotAccused(t *testing.T) {
	t.Parallel()
	for n := range uint64(40) {
		randomHonestService(t, n*193, 300)
	}
}

// randomHonestService takes so many steps, and returns the devices.
func randomHonestService(t *testing.T, seed uint64, steps int) []*device {
	t.Helper()
	ctx := context.Background()
	r := rand.New(rand.NewPCG(seed, 1))
	now := newServer(t)
	names := []string{alice, bob}
	var devices []*device
	var waiting [2][]verifier.Seen // read, and not shown yet
	var messages []string
	for range names {
		devices = append(devices, newDevice(switching{&now}, func() []verifier.Seen { return now.entries }))
	}
	for step := range steps {
		i := r.IntN(2)
		d := devices[i]
		var err error
		switch r.IntN(8) {
		case 0, 1:
			now.add(t, names[r.IntN(2)], 1+r.IntN(4))
		case 2:
			err = d.read()
		case 3:
			err = d.Refresh(ctx)
		case 4:
			if d.Newest() != "" {
				messages = append(messages, d.Message())
			}
			if len(messages) > 0 {
				err = d.Head(ctx, messages[r.IntN(len(messages))], names[1-i])
			}
		case 5: // entries are read now, and shown some time later
			waiting[i] = now.entries[min(int(d.Size()), len(now.entries)):]
		case 6:
			for _, m := range waiting[i] {
				if err = d.Entry(ctx, m); err != nil {
					break
				}
			}
			waiting[i] = nil
		case 7:
			if r.IntN(10) == 0 { // with and without a loss
				before := now
				now = before.copied(t, r.IntN(len(before.entries)+1))
				if r.IntN(2) == 0 {
					now = before.copied(t, len(before.entries))
				}
				now.generation, now.now = before.generation+1, before.now.Add(time.Hour)
			} else if len(now.entries) > 0 {
				err = d.Sent(ctx, now.entries[len(now.entries)-1])
			}
		}
		if errors.Is(err, verifier.ErrReadAgain) || errors.As(err, new(*verifier.WentBack)) {
			waiting[i] = nil
			if err = d.read(); errors.As(err, new(*verifier.WentBack)) {
				err = d.read()
			}
		}
		if errors.As(err, new(*verifier.Lie)) {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
	}
	for _, d := range devices {
		err := d.read()
		for range 3 {
			if err != nil {
				err = d.read()
			}
		}
		if err != nil || d.Size() != int64(len(now.entries)) {
			t.Fatalf("seed %d, at the end: %v, at %d of %d", seed, err, d.Size(), len(now.entries))
		}
	}
	return devices
}
