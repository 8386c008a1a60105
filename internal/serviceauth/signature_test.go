package serviceauth_test

import (
	"context"
	"encoding/base64"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

const badSignature, wrongKey = "signature does not verify", "alg does not match the key of iss"

// forge returns a token in alice's name signed by mallory.
func forge(t *testing.T, alice, mallory *authtest.Identity, f *fixture) string {
	return mallory.Authorization(t, string(service), string(send), f.now, authtest.Claim("iss", alice.DID))
}

// 50 forged tokens, one after another and then at once, cost two look-ups: the first, and one
// refresh because the key may be rotated.
func TestBadSignaturesAreNoAmplifier(t *testing.T) {
	t.Parallel()
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice)
	for range 50 {
		f.wantRefused(t, forge(t, alice, mallory, f), send, badSignature)
	}
	var wg sync.WaitGroup
	for range 50 {
		authorization := forge(t, alice, mallory, f)
		wg.Go(func() {
			if _, err := f.call(t, authorization, send); err == nil {
				t.Error("a forged token passed")
			}
		})
	}
	wg.Wait()
	if got := f.dir.Lookups(); got > 2 {
		t.Errorf("%d look-ups, want 2", got)
	}
	// A minute later there may be one more.
	f.now = f.now.Add(time.Minute)
	for range 50 {
		f.wantRefused(t, forge(t, alice, mallory, f), send, badSignature)
	}
	if got := f.dir.Lookups(); got > 3 {
		t.Errorf("%d look-ups after a minute, want 3", got)
	}
}

// The limit of refreshes applies to all DIDs together. S11: beyond it nobody is told that its
// signature is wrong.
func TestBadSignaturesOfManyDIDs(t *testing.T) {
	t.Parallel()
	const n, most = 300, 100
	mallory := authtest.NewIdentity(t)
	var ids []*authtest.Identity
	for range n {
		ids = append(ids, authtest.NewIdentity(t))
	}
	f := newFixture(t, ids...)
	for i, id := range ids {
		f.from = strconv.Itoa(i) // the limit of an address does not apply
		if i < most {
			f.wantRefused(t, forge(t, id, mallory, f), send, badSignature)
		} else if _, err := f.call(t, forge(t, id, mallory, f), send); !errors.Is(err, serviceauth.ErrRefresh) {
			t.Fatalf("the %d. refresh: %v, want ErrRefresh", i+1, err)
		}
	}
	if got := f.dir.Lookups() - n; got != most {
		t.Errorf("%d refreshes, want %d", got, most)
	}
}

// After a caller rotates its key, even to another curve, the new key passes at once and the old one
// is refused.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now), send, alice.DID)

	old := *alice
	alice.Key = authtest.P256(t)
	f.dir.Publish(alice.DID, alice.PublicKey(t))
	var wg sync.WaitGroup
	for range 20 { // all at once: none is refused while another refreshes
		authorization := alice.Authorization(t, string(service), string(send), f.now)
		wg.Go(func() {
			if did, err := f.call(t, authorization, send); err != nil || did != alice.DID {
				t.Errorf("after rotation: %q, %v", did, err)
			}
		})
	}
	wg.Wait()
	f.wantRefused(t, old.Authorization(t, string(service), string(send), f.now), send, wrongKey)
	if got := f.dir.Lookups(); got != 2 {
		t.Errorf("%d look-ups, want 2", got)
	}
}

// rotatesMeanwhile is a directory in which another request refreshes the key between this request's
// first Resolve and its second.
type rotatesMeanwhile struct {
	*authtest.Directory
	stale atcrypto.PublicKey
	once  sync.Once
}

func (d *rotatesMeanwhile) Resolve(ctx context.Context, did syntax.DID) (key atcrypto.PublicKey, err error) {
	d.once.Do(func() { key = d.stale })
	if key != nil {
		return key, nil
	}
	return d.Directory.Resolve(ctx, did)
}

// A request that read the old key just before another request's refresh passes, without a second
// refresh.
func TestKeyRotationMeanwhile(t *testing.T) {
	t.Parallel()
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	dir := &rotatesMeanwhile{Directory: authtest.NewDirectory(t, alice)}
	dir.once.Do(func() {})
	now := time.Unix(1_800_000_000, 0)
	v, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: dir, Replays: &authtest.Replays{},
		Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Validator: v, dir: dir.Directory, now: now}
	// The forged token takes this minute's refresh.
	f.wantRefused(t, forge(t, alice, mallory, f), send, badSignature)
	dir.stale, dir.once = mallory.PublicKey(t), sync.Once{}
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), now), send, alice.DID)
	if got := dir.Lookups(); got != 2 {
		t.Errorf("%d look-ups, want 2", got)
	}
}

// During an outage of the directory, a forged token must not lock the real caller out.
func TestForgeryDuringOutage(t *testing.T) {
	t.Parallel()
	alice, mallory := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice)
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now), send, alice.DID)
	f.dir.Fail(errors.New("connection refused"))
	f.wantRefused(t, forge(t, alice, mallory, f), send, badSignature)
	f.wantCaller(t, alice.Authorization(t, string(service), string(send), f.now), send, alice.DID)
}

func TestDirectoryErrors(t *testing.T) {
	t.Parallel()
	alice, nobody := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice)
	f.wantRefused(t, nobody.Authorization(t, string(service), string(send), f.now), send, "iss has no usable signing key")
	for _, tc := range []struct{ fail, want error }{
		{errors.New("connection refused"), serviceauth.ErrUnavailable},
		{serviceauth.ErrBusy, serviceauth.ErrBusy},
	} {
		f.dir.Fail(tc.fail)
		if _, err := f.call(t, alice.Authorization(t, string(service), string(send), f.now), send); !errors.Is(err, tc.want) {
			t.Errorf("directory says %v: got %v, want %v", tc.fail, err, tc.want)
		}
	}
}

// A token of one curve is refused for a key of the other curve, with either alg.
func TestAlgConfusion(t *testing.T) {
	t.Parallel()
	k, p := authtest.NewIdentity(t), authtest.NewP256Identity(t)
	f := newFixture(t, k, p)
	auth := func(id *authtest.Identity, alg string) string {
		return id.Authorization(t, string(service), string(send), f.now, authtest.Header("alg", alg))
	}
	f.wantRefused(t, auth(k, "ES256"), send, wrongKey)
	f.wantRefused(t, auth(p, "ES256K"), send, wrongKey)
	f.wantRefused(t, forge(t, k, p, f), send, wrongKey)
	f.wantRefused(t, forge(t, p, k, f), send, wrongKey)
}

// The high-S form of a signature also verifies by the mathematics. It would be a second token. The
// refusal says what to do (M8).
func TestHighSIsRefused(t *testing.T) {
	t.Parallel()
	for order, id := range map[string]*authtest.Identity{
		"fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141": authtest.NewIdentity(t),
		"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551": authtest.NewP256Identity(t),
	} {
		f := newFixture(t, id)
		token := id.Token(t, string(service), string(send), f.now)
		dot := strings.LastIndexByte(token, '.')
		sig, err := base64.RawURLEncoding.DecodeString(token[dot+1:])
		if err != nil {
			t.Fatal(err)
		}
		n, _ := new(big.Int).SetString(order, 16)
		n.Sub(n, new(big.Int).SetBytes(sig[32:])).FillBytes(sig[32:])
		key := id.PublicKey(t)
		if err := key.HashAndVerifyLenient([]byte(token[:dot]), sig); err != nil {
			t.Fatalf("the high-S form should verify: %v", err)
		}
		f.wantRefused(t, "Bearer "+token[:dot+1]+base64.RawURLEncoding.EncodeToString(sig), send,
			"signature is High-S: normalise it (replace s by n - s where s is above n/2), as AT Protocol requires; Node and "+
				"WebCrypto do not")
		f.wantCaller(t, "Bearer "+token, send, id.DID)
	}
}
