package repository_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/cmd/mlsd-dev/repository"
)

const (
	did        = "did:plc:abcdefghijklmnopqrstuvwx"
	collection = "blue.catbird.mls.device"
)

// read verifies a proof as another program does: it has the account's public key and the CAR file
// only. It returns the record, or repo.ErrNotFound.
func read(t *testing.T, car []byte, key atcrypto.PrivateKey, rkey string) ([]byte, error) {
	t.Helper()
	commit, r, err := repo.LoadRepoFromCAR(t.Context(), bytes.NewReader(car))
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := commit.VerifySignature(public); err != nil {
		return nil, err
	}
	if commit.DID != did {
		t.Errorf("the commit is one of %s", commit.DID)
	}
	data, id, err := r.GetRecordBytes(t.Context(), collection, syntax.RecordKey(rkey))
	if err != nil {
		return nil, err
	}
	if sum, err := id.Prefix().Sum(data); err != nil || !sum.Equals(*id) {
		t.Errorf("%s: the CID is not that of the record: %v", rkey, err)
	}
	return data, nil
}

func name(i int) string { return fmt.Sprintf("device%03d", i) }

// Whatever the size of the tree, each record has a proof, and so has the lack of one.
func TestProofs(t *testing.T) {
	t.Parallel()
	p256, err := atcrypto.GeneratePrivateKeyP256()
	if err != nil {
		t.Fatal(err)
	}
	k256, err := atcrypto.GeneratePrivateKeyK256()
	if err != nil {
		t.Fatal(err)
	}
	for curve, keys := range map[string][2]atcrypto.PrivateKey{"P-256": {p256, k256}, "K-256": {k256, p256}} {
		for _, records := range []int{0, 1, 2, 10, 200} {
			t.Run(fmt.Sprint(curve, "/", records), func(t *testing.T) {
				state := must(repository.New(did, keys[0]))(t)
				for i := range records {
					state = must(state.Put(collection+"/"+name(2*i), map[string]any{"$type": collection, "name": name(i)}))(t)
				}
				for i := range records {
					if _, err := read(t, proofOf(t, state, name(2*i)), keys[0], name(2*i)); err != nil {
						t.Errorf("record %d: %v", 2*i, err)
					}
					if _, err := read(t, proofOf(t, state, name(2*i+1)), keys[0], name(2*i+1)); !errors.Is(err, repo.ErrNotFound) {
						t.Errorf("no record %d: %v", 2*i+1, err)
					}
				}
				if _, err := read(t, proofOf(t, state, "z"), keys[0], "z"); !errors.Is(err, repo.ErrNotFound) {
					t.Errorf("no record after the last: %v", err)
				}
				other := must(state.SignedBy(keys[1]))(t)
				car := proofOf(t, other, name(0))
				if _, err := read(t, car, keys[0], name(0)); !errors.Is(err, atcrypto.ErrInvalidSignature) {
					t.Errorf("signed by another key: %v", err)
				}
				if _, err := read(t, car, keys[1], name(0)); (err == nil) != (records > 0) {
					t.Errorf("for that key: %v", err)
				}
			})
		}
	}
}

// A write is a new state: the old one still proves what it has proved.
func TestWrites(t *testing.T) {
	t.Parallel()
	key, err := atcrypto.GeneratePrivateKeyP256()
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) map[string]any { return map[string]any{"$type": collection, "name": name} }
	states := []*repository.State{must(repository.New(did, key))(t)}
	take := func(next *repository.State, err error) {
		t.Helper()
		last := states[len(states)-1]
		states = append(states, must(next, err)(t))
		if next.Rev() <= last.Rev() || next.CommitCID().Equals(last.CommitCID()) {
			t.Errorf("after %s comes %s", last.Rev(), next.Rev())
		}
	}
	take(states[0].Put(collection+"/phone", value("Phone")))
	take(states[1].Put(collection+"/phone", value("Old phone")))
	take(states[2].Put(collection+"/laptop", value("Laptop")))
	take(states[3].Put("blue.catbird.mls.deviceOther/x", value("of another collection")))
	take(states[4].Delete(collection + "/phone"))
	want := [][]string{{}, {"Phone"}, {"Old phone"}, {"Laptop", "Old phone"}, {"Laptop", "Old phone"}, {"Laptop"}}
	for i, state := range states {
		names := []string{}
		for _, record := range must(state.Records(collection))(t) {
			names = append(names, record.Value["name"].(string))
		}
		if diff := cmp.Diff(want[i], names); diff != "" {
			t.Errorf("state %d (-want +got):\n%s", i, diff)
		}
		_, err := read(t, proofOf(t, state, "phone"), key, "phone")
		if has := state.Has(collection + "/phone"); has != (i > 0 && i < 5) || has != (err == nil) {
			t.Errorf("state %d has the phone: %v %v", i, has, err)
		}
	}
	if n := states[5].Len(); n != 2 {
		t.Errorf("%d records", n)
	}
}

func proofOf(t *testing.T, state *repository.State, rkey string) []byte {
	t.Helper()
	return must(state.Proof(collection + "/" + rkey))(t)
}

// must takes the results of a call, and then the test: Go lets no call give both.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
