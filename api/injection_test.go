package api_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/lexgen/examples"
	"mlsd/internal/mlstest"
	"mlsd/internal/serviceauth/authtest"
)

// injections are texts that a statement made of pieces would run, wait for a minute in, or break
// at.
var injections = []string{
	`'`, `"`, `\`, `''`, `\'; DROP TABLE messages; --`, `'; DROP TABLE convos; --`, `x' OR '1'='1`, `') OR true --`,
	`'||(SELECT current_user)||'`, `$1`, `%s`, `$$; DROP TABLE members; $$`, `/*`, `;`, "`id`", "U&'\\0061'", `E'\\x00'`,
	`{"$bytes":"AA"}`, `\x00`, `x'||pg_sleep(60)||'`, `$$; SELECT pg_sleep(60); --`, `\'; ROLLBACK; --`,
	`1; UPDATE convos SET epoch = 0`, `{}'::jsonb; --`, "\u2019; DROP TABLE members; --",
}

// schema is a hash of all tables, columns, indexes, functions, policies and roles' rights.
const schema = `
	SELECT md5(string_agg(x, chr(10) ORDER BY x)) FROM (
		SELECT format('%s %s %s %s', c.oid::regclass, c.relkind, c.relacl, c.relrowsecurity)
		FROM pg_class c WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT format('%s %s %s %s', attrelid::regclass, attname, atttypid::regtype, attnotnull)
		FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
		UNION ALL SELECT format('%s %s', rolname, rolsuper) FROM pg_roles) AS all_of (x)`

// A17: SQL in any text that a caller can send, of any method, in the body, a parameter, a header,
// the token or the path, has no effect. The answer is an error that the method declares, or
// success; the schema stays as it is, and so do the rows of others.
func TestSQLInAnyField(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	w := newHostileWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "hello")
	theirs := func() string {
		return string(alice.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()) +
			string(bob.get(mlsapi.NSIDGetMessages, "convoId", c.id, "messageType", "all").ok())
	}
	structure := func() (hash string) {
		if err := w.db.QueryRow(t.Context(), schema).Scan(&hash); err != nil {
			t.Fatal(err)
		}
		return hash
	}
	before, said := structure(), theirs()
	fields, requests := 0, 0
	for _, method := range mlsapi.Methods() {
		h := w.hostile(t, method)
		for _, field := range textsOf(t, method.NSID) {
			fields++
			for _, text := range injections {
				requests++
				q, body := field.with(text)
				h.judge(field.name+" "+text, q, body)
			}
			// No row can hold U+0000: it is refused by the field's name.
			if method.Kind == mlsapi.Subscription {
				continue
			}
			q, body := field.with("a\x00b")
			if status, _, message := h.judge(field.name+" NUL", q, body); status < 400 ||
				!strings.Contains(message, field.top) {
				t.Errorf("%s %s: U+0000 is answered with %d %q", method.NSID, field.name, status, message)
			}
		}
	}
	for _, text := range injections {
		for _, header := range []string{"Idempotency-Key", "X-Request-Id", "Traceparent", "User-Agent", "X-Forwarded-For",
			"Origin"} {
			requests++
			if a := w.do(http.MethodGet, mlsapi.NSIDGetEpoch, query("convoId", c.id), nil,
				bob.authorization(mlsapi.NSIDGetEpoch), header, text); a.status >= 500 {
				t.Errorf("%s: %q: %d %s", header, text, a.status, a.body)
			}
		}
		for _, claim := range []string{"iss", "aud", "lxm", "jti"} {
			requests++
			if a := w.do(http.MethodGet, mlsapi.NSIDGetEpoch, query("convoId", c.id), nil, alice.Authorization(t, service,
				mlsapi.NSIDGetEpoch, time.Now(), authtest.Claim(claim, text))); a.status >= 500 {
				t.Errorf("%s: %q: %d %s", claim, text, a.status, a.body)
			}
		}
		requests++
		if a := w.do(http.MethodGet, url.PathEscape(text), nil, nil, ""); a.status >= 500 && a.status != 501 {
			t.Errorf("the path %q: %d %s", text, a.status, a.body)
		}
	}
	if now := structure(); now != before {
		t.Error("the schema has changed")
	}
	if now := theirs(); now != said {
		t.Errorf("what members read has changed:\n%s\n%s", said, now)
	}
	t.Logf("%d fields, %d requests", fields, requests)
}

// textField is a text in a request of a method, at any depth.
type textField struct {
	name, top string // path, and the field of the input that it is in
	with      func(text string) (url.Values, []byte)
}

// textsOf are the texts of a method's example with every field.
func textsOf(t *testing.T, nsid string) (all []textField) {
	t.Helper()
	full := examples.Valid(nsid)[0]
	for _, name := range slices.Sorted(maps.Keys(full.Query)) {
		all = append(all, textField{name, name, func(text string) (url.Values, []byte) {
			q := maps.Clone(full.Query)
			if q.Has("idempotencyKey") {
				q.Set("idempotencyKey", *newKey()) // else the request would not run
			}
			q.Set(name, text)
			return q, nil
		}})
	}
	if full.Body == nil {
		return all
	}
	var root map[string]any
	if err := json.Unmarshal(full.Body, &root); err != nil {
		t.Fatal(err)
	}
	var walk func(name, top string, v any, set func(any))
	walk = func(name, top string, v any, set func(any)) {
		switch v := v.(type) {
		case string:
			all = append(all, textField{name, top, func(text string) (url.Values, []byte) {
				if _, keyed := root["idempotencyKey"]; keyed {
					root["idempotencyKey"] = *newKey()
				}
				set(text)
				defer set(v)
				body, err := json.Marshal(root)
				if err != nil {
					t.Fatal(err)
				}
				return nil, body
			}})
		case []any:
			if len(v) > 0 {
				walk(name+"[0]", top, v[0], func(x any) { v[0] = x })
			}
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(name+"."+key, cmp.Or(top, key), v[key], func(x any) { v[key] = x })
			}
		}
	}
	walk("", "", root, nil)
	return all
}

// What is stored of a caller's texts is stored and returned as it is.
func TestSQLIsStoredAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	bob.fetch(c).ok()
	for _, text := range injections {
		key := &text
		if !lexcodec.ValidIdempotencyKey(text) {
			key = newKey()
		}
		in := alice.creation(newGroup(t))
		in.IdempotencyKey = key
		in.Metadata = &mlsapi.ConvoMetadata{Name: &text, Description: &text}
		first := alice.post(mlsapi.NSIDCreateConvo, in)
		made := read[mlsapi.ConvoView](t, first.ok())
		alice.post(mlsapi.NSIDCreateConvo, in).replays(first)
		view := read[mlsapi.GetConvoOutput](t, alice.get(mlsapi.NSIDGetConvo, "convoId", made.ID).ok()).Convo
		if *view.Metadata.Name != text || *view.Metadata.Description != text {
			t.Errorf("a convo named %q is named %q and described as %q", text, *view.Metadata.Name, *view.Metadata.Description)
		}
		message := alice.message(c, "in "+text)
		message.IdempotencyKey, message.EmbedType = key, &text
		sent := alice.post(mlsapi.NSIDSendMessage, message)
		sent.ok()
		alice.post(mlsapi.NSIDSendMessage, message).replays(sent)
		page := bob.page(c)
		if got := page.Messages[len(page.Messages)-1].EmbedType; *got != text {
			t.Errorf("the embedType %q is %q", text, *got)
		}
		body, _ := alice.KeyPackage(t)
		publication := &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String(),
			IdempotencyKey: key}
		published := alice.post(mlsapi.NSIDPublishKeyPackage, publication)
		published.ok()
		alice.post(mlsapi.NSIDPublishKeyPackage, publication).replays(published)
		bob.post(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, ErrorDetails: &text}).ok()
		var kept string
		if err := w.db.QueryRow(t.Context(), `SELECT last_error FROM welcomes WHERE convo_id = $1`, c.id).
			Scan(&kept); err != nil || kept != text {
			t.Errorf("the reason %q is %q: %v", text, kept, err)
		}
	}
}
