package mlsclient

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestRandomHistory drives the library alone through random adds, removals, updates, external
// rejoins, messages and restarts. So a fault of the library shows in this test, with a seed and
// without a server.
func TestRandomHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomHistory(t, rand.New(rand.NewPCG(seed, 1)), suites()[seed%3], 40)
		})
	}
}

func randomHistory(t *testing.T, rng *rand.Rand, suite Suite, steps int) {
	gid := []byte("random")
	founder := mustDevice(t, "did:plc:founder", suite)
	if _, err := founder.Create(gid); err != nil {
		t.Fatal(err)
	}
	live := []Device{founder}
	groups := func() []Group {
		var out []Group
		for _, d := range live {
			out = append(out, mustGroup(t, d, gid))
		}
		return out
	}
	for step := range steps {
		i := rng.IntN(len(live))
		if rng.IntN(3) == 0 {
			live[i] = restart(t, live[i])
		}
		live[i].HideHandshakes(rng.IntN(2) == 0)
		g := mustGroup(t, live[i], gid)
		var joiners []Device
		var gone string
		var staged *Staged
		var err error
		switch n := rng.IntN(10); {
		case n < 3:
			var packages [][]byte
			for k := range 1 + rng.IntN(3) {
				d := mustDevice(t, fmt.Sprintf("did:plc:j%d-%d", step, k), suite)
				packages = append(packages, mustPackage(t, d).Message)
				joiners = append(joiners, d)
			}
			staged, err = g.StageAdd(packages...)
		case n < 5 && len(live) > 2:
			gone = live[(i+1)%len(live)].Identity()
			staged, err = g.StageRemove(gone)
		case n < 6:
			staged, err = g.StageUpdate()
		case n < 7 && len(live) > 1:
			live = rejoin(t, rng, live, i, gid)
			sameEpoch(t, groups()...)
			continue
		default:
			var to []Group
			for k, other := range groups() {
				if k != i {
					to = append(to, other)
				}
			}
			tell(t, g, fmt.Sprint("step ", step), to...)
			continue
		}
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		var next []Device
		for _, d := range live {
			if d.Identity() == gone {
				continue
			}
			if _, err := mustGroup(t, d, gid).Process(staged.Commit); err != nil {
				t.Fatalf("step %d: %s: %v", step, d.Identity(), err)
			}
			next = append(next, d)
		}
		for _, d := range joiners {
			if _, err := d.Join(staged.Welcome); err != nil {
				t.Fatalf("step %d: join: %v", step, err)
			}
		}
		live = append(next, joiners...)
		sameEpoch(t, groups()...)
	}
}

// rejoin makes the member after i lose its state, and now and then its key. The member comes back
// by external commit with the GroupInfo of i.
func rejoin(t *testing.T, rng *rand.Rand, live []Device, i int, gid []byte) []Device {
	t.Helper()
	j := (i + 1) % len(live)
	info := mustInfo(t, mustGroup(t, live[i], gid))
	prior := int(mustGroup(t, live[j], gid).Own())
	reborn := mustReborn(t, live[j], rng.IntN(2) == 0)
	staged, err := reborn.JoinExternal(info, prior)
	if err != nil {
		t.Fatal(err)
	}
	live[j] = reborn
	for k, d := range live {
		if k == j {
			_, err = d.ConfirmJoin(gid)
		} else {
			_, err = mustGroup(t, d, gid).Process(staged.Commit)
		}
		if err != nil {
			t.Fatalf("rejoin of %s: %s: %v", reborn.Identity(), d.Identity(), err)
		}
	}
	return live
}
