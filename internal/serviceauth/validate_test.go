package serviceauth_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/auth"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

func TestValidateAccepts(t *testing.T) {
	t.Parallel()
	alice, bob := authtest.NewIdentity(t), authtest.NewP256Identity(t)
	web := &authtest.Identity{DID: "did:web:carol.example.com", Key: authtest.K256(t)}
	f := newFixture(t, alice, bob, web)
	at := f.now
	for name, tc := range map[string]struct {
		id      *authtest.Identity
		aud     string
		changes []authtest.Change
	}{
		"K-256":            {alice, string(service), nil},
		"P-256":            {bob, string(service), nil},
		"did:web":          {web, string(service), nil},
		"service audience": {alice, string(service) + "#atproto_mls", nil},
		"no typ":           {alice, string(service), []authtest.Change{authtest.Header("typ", nil)}},
		"kid":              {alice, string(service), []authtest.Change{authtest.Header("kid", "#atproto")}},
		"kid without #":    {alice, string(service), []authtest.Change{authtest.Header("kid", "atproto")}}, // G12
		"jti of 256 bytes": {alice, string(service),
			[]authtest.Change{authtest.Claim("jti", strings.Repeat("j", 256))}},
		"one hour": {alice, string(service),
			[]authtest.Change{authtest.Claim("exp", at.Add(time.Hour).Unix())}},
		"expired 4 s ago": {alice, string(service),
			[]authtest.Change{authtest.Claim("iat", at.Unix()-60), authtest.Claim("exp", at.Unix()-4)}},
		"issued in 30 s":        {alice, string(service), []authtest.Change{authtest.Claim("iat", at.Unix()+30)}},
		"nbf now":               {alice, string(service), []authtest.Change{authtest.Claim("nbf", at.Unix())}},
		"claims we do not know": {alice, string(service), []authtest.Change{authtest.Claim("x", map[string]any{"y": 1})}},
		"embedded key is not read": {alice, string(service),
			[]authtest.Change{authtest.Header("jwk", map[string]any{"kty": "EC"})}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, nsid := range []syntax.NSID{send, read} {
				f.wantCaller(t, tc.id.Authorization(t, tc.aud, string(nsid), at, tc.changes...), nsid, tc.id.DID)
			}
		})
	}
	f.wantCaller(t, "bearer  "+alice.Token(t, string(service), string(read), at)+" ", read, alice.DID)
}

// Tokens that indigo makes pass. Other Go clients use it.
func TestValidateAcceptsIndigo(t *testing.T) {
	t.Parallel()
	for _, id := range []*authtest.Identity{authtest.NewIdentity(t), authtest.NewP256Identity(t)} {
		f := newFixture(t, id)
		f.now = time.Now()
		lxm := send
		token, err := auth.SignServiceAuth(id.DID, string(service), time.Minute, &lxm, id.Key)
		if err != nil {
			t.Fatal(err)
		}
		f.wantCaller(t, "Bearer "+token, send, id.DID)
	}
}

// Each refusal for a claim or a header, and none costs a look-up of the issuer.
func TestValidateRefusesCheaply(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	at := f.now
	const (
		typ, iss, lxm, times = "typ is that of another kind of token", "iss must be a did:plc or did:web account",
			"lxm is not this method", "exp and iat are required, in whole seconds"
		aud, jti, kid, alg = "aud is not this service", "jti must have 1 to 256 bytes", "kid must be atproto",
			"alg must be ES256 or ES256K"
		malformed, crit        = "token claims are malformed", "crit is not supported"
		future, expired, lives = "iat or nbf is in the future", "token has expired", "token must expire within 1 hour of iat"
	)
	type changes []authtest.Change
	header, claim := authtest.Header, authtest.Claim
	for name, tc := range map[string]struct {
		changes changes
		want    string
	}{
		"typ at+jwt":               {changes{header("typ", "at+jwt")}, typ},
		"typ refresh+jwt":          {changes{header("typ", "refresh+jwt")}, typ},
		"typ DPoP+JWT":             {changes{header("typ", "DPoP+JWT")}, typ},
		"typ application/at+jwt":   {changes{header("typ", "Application/AT+jwt")}, typ},
		"typ with a parameter":     {changes{header("typ", "at+jwt; v=1")}, typ},
		"alg none":                 {changes{header("alg", "none")}, alg},
		"alg HS256":                {changes{header("alg", "HS256")}, alg},
		"alg of another case":      {changes{header("alg", "es256k")}, alg},
		"no alg":                   {changes{header("alg", nil)}, alg},
		"alg not a string":         {changes{header("alg", 1)}, "token header is malformed"},
		"kid of another key":       {changes{header("kid", "#atproto_labeler")}, kid},
		"kid without # of another": {changes{header("kid", "atproto_labeler")}, kid},
		"kid with two #":           {changes{header("kid", "##atproto")}, kid},
		"kid empty":                {changes{header("kid", "")}, kid},
		"crit":                     {changes{header("crit", []string{"exp"})}, crit},
		"crit empty":               {changes{header("crit", []string{})}, crit},
		"no iss":                   {changes{claim("iss", nil)}, iss},
		"iss with a fragment":      {changes{claim("iss", alice.DID+"#atproto")}, iss},
		"iss did:key":              {changes{claim("iss", alice.PublicKey(t).DIDKey())}, iss},
		"iss in capitals":          {changes{claim("iss", "did:plc:"+strings.ToUpper(alice.DID.Identifier()))}, iss},
		"iss too short":            {changes{claim("iss", alice.DID[:31])}, iss},
		"iss with a path":          {changes{claim("iss", "did:web:example.com:u:alice")}, iss},
		"iss with a port":          {changes{claim("iss", "did:web:example.com%3A8443")}, iss},
		"iss an address":           {changes{claim("iss", "did:web:127.0.0.1")}, iss},
		"iss localhost":            {changes{claim("iss", "did:web:localhost")}, iss},
		"iss localhost, bad port":  {changes{claim("iss", "did:web:localhost%3A080")}, iss},
		"iss localhost, evil port": {changes{claim("iss", "did:web:localhost%3A80%2Fx")}, iss},
		"no aud":                   {changes{claim("aud", nil)}, aud},
		"aud empty":                {changes{claim("aud", "")}, aud},
		"aud of another service":   {changes{claim("aud", "did:web:other.example.com")}, aud},
		"aud of another fragment":  {changes{claim("aud", service+"#atproto_labeler")}, aud},
		"aud array":                {changes{claim("aud", []string{string(service)})}, malformed},
		"no lxm":                   {changes{claim("lxm", nil)}, lxm},
		"lxm of another method":    {changes{claim("lxm", "blue.catbird.mls.leaveConvo")}, lxm},
		"lxm in another case":      {changes{claim("lxm", strings.ToLower(string(send)))}, lxm},
		"lxm star":                 {changes{claim("lxm", "*")}, lxm},
		"no jti":                   {changes{claim("jti", nil)}, jti},
		"jti empty":                {changes{claim("jti", "")}, jti},
		"jti too long":             {changes{claim("jti", strings.Repeat("j", 257))}, jti},
		"jti not a string":         {changes{claim("jti", 7)}, malformed},
		"no exp":                   {changes{claim("exp", nil)}, times},
		"no iat":                   {changes{claim("iat", nil)}, times},
		"exp zero":                 {changes{claim("exp", 0)}, times},
		"exp huge":                 {changes{claim("exp", int64(1)<<62)}, times},
		"iat negative":             {changes{claim("iat", -5)}, times},
		"exp with a fraction":      {changes{claim("exp", 1800000060.5)}, malformed},
		"exp a string":             {changes{claim("exp", "1800000060")}, malformed},
		"expired":                  {changes{claim("iat", at.Unix()-60), claim("exp", at.Unix()-5)}, expired},
		"a minute and an hour":     {changes{claim("exp", at.Add(time.Hour+time.Second).Unix())}, lives},
		"ten years":                {changes{claim("exp", at.AddDate(10, 0, 0).Unix())}, lives},
		"ten years, last hour":     {changes{claim("iat", at.AddDate(-10, 0, 0).Unix())}, lives},
		"exp before iat":           {changes{claim("iat", at.Unix()+20), claim("exp", at.Unix()+10)}, lives},
		"issued in 31 s":           {changes{claim("iat", at.Unix()+31)}, future},
		"nbf in 31 s":              {changes{claim("nbf", at.Unix()+31)}, future},
	} {
		t.Run(name, func(t *testing.T) {
			f.wantRefused(t, alice.Authorization(t, string(service), string(send), at, tc.changes...), send, tc.want)
		})
	}
	if got := f.dir.Lookups(); got != 0 {
		t.Errorf("%d look-ups, want 0", got)
	}
	if got := f.replays.Len(); got != 0 {
		t.Errorf("%d tokens used up, want 0", got)
	}
}

// A token that two JSON or base64 parsers could read differently is refused.
func TestValidateRefusesForms(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	good := alice.Token(t, string(service), string(send), f.now)
	head, _, _ := strings.Cut(good, ".")
	const (
		scheme, form, base64 = "authorization is not a Bearer token", "token is not a compact JWS", "token is not base64url"
		header, claims       = "token header is malformed", "token claims are malformed"
		okHeader             = `{"alg":"ES256K"}`
	)
	sign := func(header, claims string) string { return "Bearer " + authtest.Sign(t, alice.Key, header, claims) }
	for name, tc := range map[string]struct{ authorization, want string }{
		"basic":             {"Basic YTpi", scheme},
		"scheme only":       {"Bearer", scheme},
		"DPoP":              {"DPoP " + good, scheme},
		"no token":          {"Bearer ", form},
		"two parts":         {"Bearer a.b", form},
		"four parts":        {"Bearer " + good + ".e30", form},
		"five parts":        {"Bearer a.b.c.d.e", form},
		"no signature":      {"Bearer " + good[:strings.LastIndexByte(good, '.')+1], form},
		"no header":         {"Bearer " + strings.TrimPrefix(good, head), form},
		"padding":           {"Bearer " + good + "==", base64},
		"line break":        {"Bearer " + good[:10] + "\n" + good[10:], base64},
		"two tokens":        {"Bearer " + good + ", Bearer " + good, form},
		"trailing bits":     {"Bearer " + good[:len(good)-1] + "B", base64},
		"standard alphabet": {"Bearer " + head + ".+/+/.AAAA", base64},
		"too long":          {"Bearer " + strings.Repeat("a", 4097), "token is too long"},
		"short signature":   {"Bearer " + good[:len(good)-2], "signature does not verify"},
		"duplicate alg":     {sign(`{"alg":"none","alg":"ES256K"}`, `{}`), header},
		"header array":      {sign(`["ES256K"]`, `{}`), header},
		"header trailing":   {sign(okHeader+`{}`, `{}`), header},
		"header not UTF-8":  {sign("{\"alg\":\"ES256K\",\"x\":\"\xff\"}", `{}`), header},
		"crit null":         {sign(`{"alg":"ES256K","crit":null}`, `{}`), "crit is not supported"},
		"duplicate iss":     {sign(okHeader, `{"iss":"did:plc:a","iss":"did:plc:b"}`), claims},
		"escaped duplicate": {sign(okHeader, `{"iss":"did:plc:a","\u0069ss":"did:plc:b"}`), claims},
		"iss in capitals":   {sign(okHeader, `{"ISS":"`+alice.DID.String()+`"}`), "iss must be a did:plc or did:web account"},
		"claims null":       {sign(okHeader, `null`), "iss must be a did:plc or did:web account"},
		"claims trailing":   {sign(okHeader, `{} x`), claims},
		"claims nested":     {sign(okHeader, `{"x":`+strings.Repeat("[", 2000)), claims},
	} {
		t.Run(name, func(t *testing.T) { f.wantRefused(t, tc.authorization, send, tc.want) })
	}
	if _, err := f.call(t, "", send); !errors.Is(err, serviceauth.ErrMissing) {
		t.Errorf("no header: %v, want ErrMissing", err)
	}
	if got := f.dir.Lookups(); got != 0 {
		t.Errorf("%d look-ups, want 0", got)
	}
}

func TestNewRefusesIncompleteConfig(t *testing.T) {
	t.Parallel()
	good := serviceauth.Config{Audiences: []string{string(service)}, Directory: authtest.NewDirectory(t),
		Replays: &authtest.Replays{}}
	if _, err := serviceauth.New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*serviceauth.Config){
		"no audiences":    func(c *serviceauth.Config) { c.Audiences = nil },
		"empty audience":  func(c *serviceauth.Config) { c.Audiences = []string{string(service), ""} },
		"fragment only":   func(c *serviceauth.Config) { c.Audiences = []string{"#atproto_mls"} },
		"empty fragment":  func(c *serviceauth.Config) { c.Audiences = []string{string(service) + "#"} },
		"no directory":    func(c *serviceauth.Config) { c.Directory = nil },
		"no replay store": func(c *serviceauth.Config) { c.Replays = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := serviceauth.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAudiences(t *testing.T) {
	t.Parallel()
	want := []string{"did:web:localhost%3A8080", "did:web:localhost%3A8080#atproto_mls"}
	if diff := cmp.Diff(want, serviceauth.Audiences("did:web:localhost%3A8080")); diff != "" {
		t.Error(diff)
	}
}

// While every slot is taken, a token that is not urgent waits. If its request is cancelled, the
// token is neither accepted nor refused. The urgent method does not wait.
func TestUrgent(t *testing.T) {
	t.Parallel()
	alice := authtest.NewIdentity(t)
	f := newFixture(t, alice)
	busy := f.Occupy(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Validate(gone, "", alice.Authorization(t, string(service), string(read), f.now), read, false,
		nil); !errors.Is(err, serviceauth.ErrUnavailable) {
		t.Errorf("while every slot is taken: %v, want ErrUnavailable", err)
	}
	if token, err := f.Validate(gone, "", alice.Authorization(t, string(service), string(send), f.now), send, true,
		nil); err != nil || token.Caller != alice.DID {
		t.Errorf("the urgent method: %s, %v", token.Caller, err)
	}
	busy()
	f.wantCaller(t, alice.Authorization(t, string(service), string(read), f.now), read, alice.DID)
}
