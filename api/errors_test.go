package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/welcome"
)

// Every error of an answer is declared in a lexicon, or is one that every method can answer with.
func TestErrorsAreDeclared(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	of := map[string][]string{}
	for _, m := range mlsapi.Methods() {
		of[m.NSID] = m.Errors
		for _, name := range m.Errors {
			declared[name] = true
		}
	}
	for _, name := range api.EmittedNames() {
		if !declared[name] {
			t.Errorf("%s is answered, and no lexicon declares it", name)
		}
	}
	for _, rule := range api.RenamedRules() {
		if !slices.Contains(of[rule[0]], rule[1]) {
			t.Errorf("%s answers a broken rule with %s, which it does not declare", rule[0], rule[1])
		}
	}
	for name := range declared {
		if name == "ExpiredToken" || api.StatusOf(name) == http.StatusUnauthorized {
			t.Errorf("%s is answered with 401 or makes clients refresh their session", name)
		}
	}
}

// The table of statuses in the contract: every named error that is not in it is 400.
func TestErrorStatuses(t *testing.T) {
	t.Parallel()
	want := map[string]int{
		"NotMember": 403, "NotPermitted": 403, "SenderMismatch": 403,
		"ConvoNotFound": 404, "WelcomeNotFound": 404, "KeyPackageNotFound": 404, "GroupInfoNotFound": 404,
		"EpochMismatch": 409, "GroupAlreadyExists": 409, "AlreadyMember": 409, "LastMember": 409, "IdempotencyConflict": 409,
		"RequestInProgress": 409, "ConvoClosed": 409, "WelcomeConsumed": 410, "MessageTooLarge": 413,
		"AttachmentNotFound": 404, "AttachmentIncomplete": 409, "AttachmentTooLarge": 413, "ConvoDisputed": 409,
	}
	for _, m := range mlsapi.Methods() {
		for _, name := range m.Errors {
			status, special := want[name]
			if !special {
				status = http.StatusBadRequest
			}
			if got := api.StatusOf(name); got != status {
				t.Errorf("%s is answered with %d, want %d", name, got, status)
			}
		}
	}
}

// Every error of the domain packages has an answer, however it is wrapped, and none of them is the
// server's fault.
func TestDomainErrorsHaveAnswers(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		messages.ErrConvoNotFound, messages.ErrNotMember, messages.ErrInvalidCursor, messages.ErrWrongGroup,
		messages.ErrConvoClosed, &messages.EpochMismatchError{}, convos.ErrNotExternalSender,
		&convos.InvalidProposalError{Err: errors.New("x")},
		convos.ErrNotFound, convos.ErrNotMember, convos.ErrGroupAlreadyExists, convos.ErrTooManyMembers, convos.ErrLastMember,
		convos.ErrCommitRequired, convos.ErrNotPermitted, convos.ErrTargetNotMember, convos.ErrSeqAhead,
		&convos.AlreadyMemberError{},
		&convos.InvalidObjectError{Object: convos.Commit}, &convos.InvalidObjectError{Object: convos.Welcome},
		&convos.InvalidObjectError{Object: convos.GroupInfo},
		keypackages.ErrTooMany, keypackages.ErrExpirationTooFar, keypackages.ErrNotFound, &keypackages.InvalidError{},
		&keypackages.UnusableError{},
		welcome.ErrNotFound, welcome.ErrConsumed, events.ErrFutureCursor, events.ErrConsumerTooSlow, events.ErrInvalidTicket,
		idem.ErrInProgress, &idem.ConflictError{},
	} {
		status, name, ok := api.Refusal(fmt.Errorf("wrapped: %w", err))
		if !ok || status < 400 || status >= 500 || name == "" {
			t.Errorf("%T %v is answered with %d %q", err, err, status, name)
		}
	}
}

// A message that was not queued can be sent again.
func TestMessageAfterDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	node := w.boot()
	if err := w.messages.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	message := alice.message(c, "x")
	alice.on(node).post(mlsapi.NSIDSendMessage, message).unavailable()
	alice.post(mlsapi.NSIDSendMessage, message).ok()
}

// The limits of a person and of an address, and the headers that go with them.
func TestRateLimits(t *testing.T) {
	t.Parallel()
	headers := func(t *testing.T, a answer) (limit, remaining, reset int) {
		t.Helper()
		var values [3]int
		for i, name := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"} {
			var err error
			if values[i], err = strconv.Atoi(a.header.Get(name)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return values[0], values[1], values[2]
	}
	refused := func(t *testing.T, a answer, burst int) {
		t.Helper()
		a.fails(http.StatusTooManyRequests, "RateLimitExceeded")
		if limit, remaining, reset := headers(t, a); limit != burst || remaining != 0 || reset < 1 {
			t.Fatalf("the refusal says limit %d, remaining %d, reset %d", limit, remaining, reset)
		}
		if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 {
			t.Fatalf("Retry-After is %q", a.header.Get("Retry-After"))
		}
	}
	t.Run("DID", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 3} })
		alice := w.user()
		for left := 2; left >= 0; left-- {
			a := alice.get(mlsapi.NSIDGetConvos)
			a.ok()
			if limit, remaining, _ := headers(t, a); limit != 3 || remaining != left {
				t.Fatalf("limit %d, remaining %d; want 3 and %d", limit, remaining, left)
			}
		}
		refused(t, alice.get(mlsapi.NSIDGetConvos), 3)
		refused(t, alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{}), 3)
		w.user().get(mlsapi.NSIDGetConvos).ok()
	})
	t.Run("IP", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(w *world) { w.rates.IP = api.Rate{PerSecond: 1e-3, Burst: 2} })
		for range 5 { // all users of a PDS come from one address
			w.user().get(mlsapi.NSIDGetConvos).ok()
		}
		for range 2 {
			w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, "").fails(http.StatusUnauthorized, "AuthMissing")
		}
		refused(t, w.user().get(mlsapi.NSIDGetConvos), 2)
		// Headers with another address do not count.
		refused(t, w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, "", "X-Forwarded-For", "192.0.2.7", "X-Real-Ip",
			"192.0.2.8"), 2)
	})
}

// 401 is only for authentication, and names the scheme.
func TestUnauthorized(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, other := w.user(), w.user()
	nsid := mlsapi.NSIDUpdateCursor
	body := encode(&mlsapi.UpdateCursorInput{ConvoID: "x"})
	used := alice.authorization(nsid)
	w.do(http.MethodPost, nsid, nil, body, used).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	for name, authorization := range map[string]string{
		"none": "", "used": used, "noise": "Bearer noise", "another scheme": "Basic YTpi", "nothing behind Bearer": "Bearer ",
		"for another method": alice.authorization(mlsapi.NSIDSendMessage), "by another's key": func() string {
			forger := *alice.Identity
			forger.Key = other.Key
			return (&user{Identity: &forger, w: w}).authorization(nsid)
		}(),
	} {
		want := "InvalidToken"
		if name == "none" {
			want = "AuthMissing"
		}
		a := w.do(http.MethodPost, nsid, nil, body, authorization)
		a.fails(http.StatusUnauthorized, want)
		if a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: a 401 without WWW-Authenticate", name)
		}
	}
	for _, verb := range []string{http.MethodGet, http.MethodPost} {
		r := w.request(verb, map[string]string{"GET": mlsapi.NSIDGetConvos, "POST": nsid}[verb], nil, body, "")
		r.Header["Authorization"] = []string{alice.authorization(nsid), other.authorization(nsid)}
		w.answer(w.server, r).fails(http.StatusBadRequest, "InvalidRequest")
	}
}

// Without a database every method answers 503, with the time to retry.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	unreachable, err := pgxpool.New(context.Background(), "postgres://mlsd@127.0.0.1:1/mlsd")
	if err != nil {
		t.Fatal(err)
	}
	defer unreachable.Close()
	gone := *w
	gone.db = unreachable
	node := gone.boot()
	for _, a := range []answer{
		alice.on(node).get(mlsapi.NSIDGetConvos),
		alice.on(node).get(mlsapi.NSIDGetMessages, "convoId", c.id),
		alice.on(node).get(mlsapi.NSIDGetKeyPackages, "dids", alice.did().String()),
		alice.on(node).post(mlsapi.NSIDSendMessage, alice.message(c, "x")),
		alice.on(node).post(mlsapi.NSIDPublishKeyPackage, &mlsapi.PublishKeyPackageInput{}),
	} {
		a.unavailable()
	}
	w.answer(node, w.request(http.MethodGet, "_health", nil, nil, "")).ok()
}
