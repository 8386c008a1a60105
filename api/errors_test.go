package api_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/convos/disputes"
	"mlsd/events"
	"mlsd/features/archive"
	"mlsd/features/attachments"
	"mlsd/features/erasure"
	"mlsd/features/network"
	"mlsd/features/push"
	"mlsd/features/reports"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/people/accounts"
	"mlsd/people/consent"
	"mlsd/people/quota"
	"mlsd/people/sessions"
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
		"ConvoNotFound": 404, "WelcomeNotFound": 404,
		"InvitationNotFound": 404, "KeyPackageNotFound": 404, "GroupInfoNotFound": 404,
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
// server's fault. Its message says what was got or found, and what is wanted or to be done. No row
// of the table of errors is left out, but those of the server's own failures.
func TestDomainErrorsHaveAnswers(t *testing.T) {
	t.Parallel()
	const did = syntax.DID("did:plc:ewvi7nxzyoun6zhxrhs64oiz")
	var errs []error
	for _, tc := range []struct {
		err         error
		got, wanted string
	}{
		{lexcodec.Malformed("sha256", "must be hexadecimal", "x"), "got a text of 1 byte", "sha256 must be hexadecimal"},
		{messages.ErrConvoNotFound, "no such convo, or the caller was never its member", "getConvos lists"},
		{messages.ErrNotMember, "no longer a member", "a member can add it again"},
		{messages.ErrInvalidCursor, "not a message of this convo", "one that this method gave, or none"},
		{messages.ErrWrongGroup, "another group than the convo", "the convo of its group"},
		{messages.ErrConvoClosed, "is closed", "getConvo names its successorGroupId"},
		{&messages.ClosedError{}, "was reset", "go on in another one; successorConvoId="},
		{messages.ErrInvalidAsset, "no such attachment that is complete", "complete it first"},
		{&messages.EpochMismatchError{Epoch: 6, Current: 7}, "epoch 6 is stale", "currentEpoch=7"},
		{&disputes.OpenError{Dispute: disputes.Dispute{Epoch: 6, Committer: did}}, "epoch 6 by " + did.String(),
			"commit later"},
		{&idem.ConflictError{Fields: []string{"epoch"}}, "differing fields: epoch", "a new request needs a new key"},
		{idem.ErrKeyTaken, "belongs to an earlier request", "use a new key"},
		{idem.ErrInProgress, "is still running", "wait, then send the same bytes again"},
		{&idem.RunningError{}, "processing_started_at=", "wait, then send the same bytes again"},
		{attachments.ErrChecking, "is being completed", "wait for getAttachmentStatus"},
		{attachments.ErrNotFound, "no such attachment", "check attachmentId and convoId"},
		{fmt.Errorf("%w: 9 bytes, and at most 8 are taken", attachments.ErrTooLarge), "9 bytes", "at most 8"},
		{&attachments.IncompleteError{Missing: []int{2}}, "is not complete", "missing parts: 2"},
		{&attachments.IncompleteError{}, "is not complete", "call completeAttachment"},
		{&attachments.FailedError{Reason: "part 2 is not what was announced: upload it again"}, "part 2", "upload it again"},
		{attachments.ErrNotPermitted, "has not announced", "only its sender deletes it"},
		{fmt.Errorf("%w: its parts are 1 to 2, and this one is 3", attachments.ErrNoPart), "this one is 3", "1 to 2"},
		{&attachments.PartLengthError{Want: 1}, "got 0", "length in bytes must be 1"},
		{&attachments.PartLengthError{Want: 8, More: true}, "got more", "length in bytes must be 8"},
		{convos.ErrNotExternalSender, "do not name the caller", "external_senders"},
		{&convos.InvalidObjectError{Object: convos.Proposal, Reason: "signature: does not verify"}, "ciphertext: signature",
			"verify"},
		{&convos.NotPermittedError{Reason: "the commit removes a device of another; leave that out"}, "the commit removes",
			"leave that out"},
		{convos.ErrGroupAlreadyExists, "exists already", "take another groupId"},
		{fmt.Errorf("%w; it would have %d", convos.ErrTooManyMembers, 1001), "it would have 1001", "at most 1000 members"},
		{convos.ErrLastMember, "the last member cannot leave", "hide the convo"},
		{convos.ErrCommitRequired, "there is no commit", "make it with the MLS library"},
		{convos.ErrNotPermitted, "the caller is no admin", "only admins remove"},
		{convos.ErrForked, "have reported different authenticators", "offer the GroupInfo with reportEpoch"},
		{convos.ErrTargetNotMember, "was never a member", "getConvo lists the members"},
		{convos.ErrNoGroupInfo, "no GroupInfo", "the next commit that brings one"},
		{&convos.AlreadyMemberError{DID: did}, did.String() + " is a member already", "leave it out"},
		{&convos.InvalidObjectError{Object: convos.Commit, Reason: "epoch is 1, and not 2"}, "commit: epoch is 1", "not 2"},
		{&convos.InvalidObjectError{Object: convos.Welcome, Reason: "names no one"}, "welcomeMessage:", "names"},
		{&convos.InvalidObjectError{Object: convos.GroupInfo, Reason: "epoch is 1, and not 2"}, "groupInfo: epoch", "not 2"},
		{&network.ReceiptError{Reason: "the claim has ended: claim another"}, "receipts[0]: the claim", "claim another"},
		{&network.InvitationError{Reason: "the inviter has not claimed the KeyPackage"}, "has not claimed", "the KeyPackage"},
		{network.ErrNoInvitation, "there is no invitation", "to this convo"},
		{&network.DistrustError{DID: did, Reason: "is no delivery service"}, did.String(), "is no delivery service"},
		{&network.BudgetError{After: time.Second}, "no more invitations to people", "deliver it again later"},
		{keypackages.ErrTooMany, "KeyPackages of an account", "at most"},
		{keypackages.ErrExpirationTooFar, "expires", "90 days"},
		{keypackages.ErrNotFound, "no KeyPackage", "claim them with getKeyPackages"},
		{&keypackages.InvalidError{Reason: "cipherSuite is 1, and the KeyPackage of 2"}, "is 1", "of 2"},
		{&keypackages.UnusableError{Reason: "has expired"}, "has expired", "claim another with getKeyPackages"},
		{welcome.ErrNotFound, "no Welcome for this device", "be invited again"},
		{fmt.Errorf("%w; to come back, be invited", welcome.ErrConsumed), "has been consumed", "to come back"},
		{&consent.BlockedError{DID: did}, did.String() + " is blocked by the caller", "unblock it first"},
		{consent.ErrTooManyBlocks, "an account blocks", "at most"},
		{consent.ErrOwnBlock, "did: an account", "cannot block itself"},
		{reports.ErrDisabled, "takes no reports", "its operator has published no key"},
		{reports.ErrUnknownKey, "another key now", "read it with getReportKey"},
		{reports.ErrNotSealed, "sealedReport", "want"},
		{archive.ErrPosition, "not one that this method gave", "begin again without one"},
		{erasure.ErrConfirmation, "not the newest one", "ask for another"},
		{&sessions.RefreshError{Reason: "the refresh token was used before: buy a session"}, "was used before", "buy"},
		{sessions.ErrDevice, "deviceId", "must be 64 lower-case hexadecimal digits"},
		{transparency.ErrRange, "seq, from and size", "must be within the log"},
		{push.ErrNoWebPush, "this server", "has no key for Web Push"},
		{push.ErrTooManyTargets, "too many devices", "unregisterPushTarget removes one"},
		{&push.InvalidError{Reason: "kind must be apns, webhook or webpush, and is none of them"}, "is none",
			"must be apns, webhook or webpush"},
		{events.ErrFutureCursor, "ahead of the stream", "connect without one"},
		{events.ErrConsumerTooSlow, "faster than they are read", "connect again at the last cursor"},
		{events.ErrInvalidTicket, "not valid", "get a new one with getSubscriptionTicket"},
		{events.ErrTooMany, "too many subscriptions", "close one"},
		{serviceauth.ErrMissing, "no Authorization header", "send a service-auth token"},
		{serviceauth.ErrReplayed, "was used before", "get a new one"},
		{serviceauth.ErrSpent, "from this address", "too many tokens of unknown accounts"},
		{serviceauth.ErrOften, "too many sessions", "service-auth tokens work meanwhile"},
		{accounts.ErrBlocked, "has blocked the account", "the operator of this service"},
		{accounts.ErrNotAdmitted, "only accounts on its list", "this service serves"},
		{&accounts.InactiveError{Status: accounts.Deactivated}, "is deactivated", "reactivate it at its PDS"},
		{api.Limited(1500 * time.Millisecond), "too many requests", "send the same bytes again after 2 s"},
		{&quota.ExceededError{Quota: "messages", Used: 9, Limit: 8, Resets: time.Unix(0, 0)}, "9 of 8", "resets at 1970"},
	} {
		err := fmt.Errorf("wrapped: %w", tc.err)
		errs = append(errs, err)
		status, name, message, ok := api.Refusal(err)
		if !ok || status < 400 || status >= 500 || name == "" {
			t.Errorf("%T %v is answered with %d %q", tc.err, tc.err, status, name)
		}
		if !strings.Contains(message, tc.got) || !strings.Contains(message, tc.wanted) || tc.got == "" || tc.wanted == "" {
			t.Errorf("%T is answered with %q, which lacks %q or %q", tc.err, message, tc.got, tc.wanted)
		}
	}
	for _, row := range api.UntestedRows(errs) {
		t.Errorf("no error of the test is answered by %s", row)
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
	body := encode(&mlsapi.UpdateCursorInput{ConvoID: uuid.NewString()})
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
