package verifier_test

import (
	"context"
	"errors"
	"testing"

	"mlsd/features/transparency/verifier"
)

// What a server of a later generation has acknowledged before the device's first head is compared with
// what it shows. It may have gone back in between, so a difference is no lie. T10 of the third
// examination: the verifier forgot what was acknowledged.
func TestAcknowledgedBeforeTheFirstHead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, why string
		change    func(*verifier.Seen)
	}{
		{"nothing", "", func(*verifier.Seen) {}},
		{"sender", "entry 2 is mine, and is shown as one of did:plc:bob", func(m *verifier.Seen) { m.Sender = bob }},
		{"text", "entry 2 is mine, and is shown with other bytes",
			func(m *verifier.Seen) { m.Body = verifier.BodyHash([]byte("other")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			earlyChanged(t, c.why, c.change)
		})
	}
}

// earlyChanged returns a device to which the second of three acknowledged entries is shown changed.
func earlyChanged(t *testing.T, why string, change func(*verifier.Seen)) *device {
	t.Helper()
	honestly, s := newServer(t), newServer(t)
	s.generation = 7
	honestly.add(t, alice, 3)
	for _, m := range honestly.entries {
		if m.Seq == 2 {
			change(&m)
		}
		s.append(t, m)
	}
	d := newDevice(s, honest(s))
	for _, m := range honestly.entries {
		if err := d.Sent(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	var back *verifier.WentBack
	if err := d.readOnce(); why == "" && err != nil || why != "" && (!errors.As(err, &back) || back.Why != why) {
		t.Fatalf("the first reading: %v", err)
	}
	if err := d.read(); err != nil || d.Size() != 3 {
		t.Fatalf("then: %v, at %d", err, d.Size())
	}
	return d
}

// What was acknowledged and is not in the first head is lost.
func TestLostBeforeTheFirstHead(t *testing.T) {
	t.Parallel()
	earlyLost(t)
}

func earlyLost(t *testing.T) *device {
	t.Helper()
	before := newServer(t)
	before.add(t, alice, 3)
	s := before.copied(t, 1)
	s.generation = 7
	d := newDevice(s, honest(s))
	for _, m := range before.entries[1:] {
		if err := d.Sent(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	var back *verifier.WentBack
	if err := d.Refresh(context.Background()); !errors.As(err, &back) || back.From != 3 || back.To != 1 {
		t.Fatal(err)
	}
	if err := d.read(); err != nil || d.Size() != 1 {
		t.Fatalf("then: %v, at %d", err, d.Size())
	}
	return d
}

// What was acknowledged and not yet shown is compared, even if the generation changes before.
func TestAcknowledgedBeforeAnotherGeneration(t *testing.T) {
	t.Parallel()
	earlyInAnotherGeneration(t)
}

func earlyInAnotherGeneration(t *testing.T) *device {
	t.Helper()
	s := newServer(t)
	s.add(t, bob, 5)
	now := s
	d := newDevice(switching{&now}, func() []verifier.Seen { return now.entries })
	if err := errors.Join(d.read(), d.Refresh(context.Background())); err != nil {
		t.Fatal(err)
	}
	other := s.copied(t, 5)
	other.generation = 7
	s.add(t, alice, 1)
	other.add(t, bob, 1)
	if err := d.Sent(context.Background(), s.entries[5]); err != nil {
		t.Fatal(err)
	}
	now = other
	if err := d.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	var back *verifier.WentBack
	if err := d.readOnce(); !errors.As(err, &back) || back.Why != "entry 6 is mine, and is shown with other bytes" {
		t.Fatal(err)
	}
	if err := d.read(); err != nil || d.Size() != 6 {
		t.Fatalf("then: %v, at %d", err, d.Size())
	}
	return d
}
