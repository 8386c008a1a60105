package api_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/people/quota"
)

// clock is a clock that a test sets.
type clock struct{ at atomic.Int64 }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.at.Store(at.Unix())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(c.at.Load(), 0) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d / time.Second)) }

// noon is the time at which the tests of quotas begin: the day ends in twelve hours.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const midnight = "2026-01-02T00:00:00Z"

// spend is a kind of write that uses a quota. size is what one request uses; nil: 1.
type spend struct {
	make func(by *user, shared *convo) request
	size func(request) int
}

func sending(by *user, c *convo) request {
	return request{by: by, nsid: mlsapi.NSIDSendMessage, in: by.message(c, "hello"),
		effects: `SELECT count(*) FROM messages WHERE convo_id = $1 AND sender_did = $2`, args: []any{c.id, by.did()}}
}

func creating(by *user, others ...*user) request {
	group := newGroup(by.w.t)
	return request{by: by, nsid: mlsapi.NSIDCreateConvo, in: by.creation(group, others...),
		effects: `SELECT count(*) FROM convos WHERE group_id = $1`, args: []any{group}}
}

func ciphertext(r request) int { return len(r.in.(*mlsapi.SendMessageInput).Ciphertext) }

// spends has a write for every quota, by its name.
func spends() map[string]spend {
	alone := func(by *user, _ *convo) request { return creating(by) }
	all := map[string]spend{
		"messages-per-day": {make: sending},
		"bytes-per-day":    {make: sending, size: ciphertext},
		"convos-per-day":   {make: alone},
		"records-per-day":  {make: alone},
		"outsiders-invited-per-day": {make: func(by *user, _ *convo) request {
			return creating(by, by.w.user())
		}},
		"key-packages-per-day": {make: func(by *user, _ *convo) request {
			body, ref := by.KeyPackage(by.w.t)
			return request{by: by, nsid: mlsapi.NSIDPublishKeyPackage,
				in: &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String(),
					IdempotencyKey: newKey()},
				effects: `SELECT count(*) FROM key_packages WHERE ref = $1`, args: []any{[]byte(ref)}}
		}},
		"reports-per-day": {make: func(by *user, shared *convo) request {
			in := by.report(shared, "again")
			in.IdempotencyKey = newKey()
			return request{by: by, nsid: mlsapi.NSIDReportConvo, in: in,
				effects: `SELECT count(*) FROM abuse_reports WHERE sealed = $1`, args: []any{[]byte(in.SealedReport)}}
		}},
	}
	all["resets-per-day"] = spend{make: func(by *user, _ *convo) request {
		c := by.create()
		in := &mlsapi.ResetConvoInput{ConvoID: c.id, Reason: "other", IdempotencyKey: newKey(),
			GroupInfo: by.groupInfo(newGroup(by.w.t), 0)}
		return request{by: by, nsid: mlsapi.NSIDResetConvo, in: in,
			effects: `SELECT count(*) FROM convos WHERE predecessor_id = $1`, args: []any{c.id}}
	}}
	all["attachment-bytes-per-day"] = spend{
		make: func(by *user, shared *convo) request {
			in := announcement(shared, newFile(by.w.t, 100_000))
			return request{by: by, nsid: mlsapi.NSIDCreateAttachment, in: in,
				effects: `SELECT count(*) FROM attachments WHERE encode(sha256, 'hex') = $1`, args: []any{in.Sha256}}
		},
		size: func(request) int { return 100_000 },
	}
	for _, name := range []string{"messages-per-day", "bytes-per-day", "convos-per-day", "records-per-day",
		"outsiders-invited-per-day", "key-packages-per-day",
		"reports-per-day", "attachment-bytes-per-day", "resets-per-day"} {
		all["address-"+name] = all[name]
	}
	all[quota.ConvoBytes] = spend{make: sending, size: ciphertext}
	return all
}

// limitsFor are limits that two requests of the size use up: of the quota with the name alone.
func limitsFor(name string, size int) quota.Limits {
	if base, ofAddress := strings.CutPrefix(name, "address-"); ofAddress {
		return quota.Limits{base: int64(size), quota.AddressShare: 2}
	}
	return quota.Limits{name: int64(2 * size)}
}

// H10: nothing bounded what one DID, one address and one convo store. Every quota is refused by its
// name once it is used up, and not before. A retry of what was stored gets its first answer. The
// next day the quota is free again.
func TestQuotas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range quota.Names() {
		switch strings.TrimPrefix(name, "address-") {
		// TestOpenInvitations, TestInvitationsOfOneInviter, TestInvitationsOfAnAddress, TestReportBytes,
		// TestUploadQuota, TestResetOfAReset
		case quota.OpenInvitations, quota.OneInviter, "address-" + quota.OneInviter, quota.ReportBytes,
			"uploaded-bytes-per-day", quota.ResetsOfConvo:
			continue
		}
		t.Run(name, func(t *testing.T) {
			s, ok := spends()[name]
			if !ok {
				t.Fatal("the quota has no test")
			}
			w := w.within(t)
			people := []*user{w.user(), w.user(), w.user()}
			shared := people[0].create(people[1:]...)
			var requests []request
			for i := range 3 {
				by := people[0]
				if strings.HasPrefix(name, "address-") || name == quota.ConvoBytes {
					by = people[i]
				}
				requests = append(requests, s.make(by, shared))
			}
			size := 1
			if s.size != nil {
				size = s.size(requests[0])
			}
			clock := newClock(noon)
			w.limits, w.now = limitsFor(name, size), clock.now
			node := w.boot()
			requests[0].send(node).ok()
			second := requests[1].send(node)
			second.ok()
			third := requests[2].send(node)
			want := fmt.Sprintf("quota %s is used up: %d of %d; resets at %s", name, 2*size, 2*size, midnight)
			if got := third.fails(http.StatusTooManyRequests, "QuotaExceeded"); got != want {
				t.Errorf("message %q, want %q", got, want)
			}
			if got := third.header.Get("Retry-After"); got != "43200" {
				t.Errorf("Retry-After %q", got)
			}
			requests[1].send(node).replays(second)
			// a refusal counts nothing, and is no record
			requests[2].send(node).fails(http.StatusTooManyRequests, "QuotaExceeded")
			clock.advance(12 * time.Hour)
			requests[2].send(node).ok()
			if !strings.HasSuffix(requests[2].nsid, "sendMessage") {
				requests[2].once()
			}
		})
	}
}

// H10: what one DID can fill in a day is what docs/QUOTAS.md says. A hundredth of the default
// quotas is used up, and the database grows by no more than a hundredth of the figure there.
func TestDiskOfADay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 6 MB")
	}
	w := newWorld(t)
	w.limits = quota.Limits{}
	for name, limit := range quota.Defaults() {
		w.limits[name] = limit / 100
	}
	w.limits[quota.AddressShare] = 1
	alice := w.user().on(w.boot())
	c := alice.create()
	writes := []func() answer{
		func() answer { return creating(alice).send(alice.w.server) },
		func() answer {
			body, _ := alice.KeyPackage(t)
			return alice.post(mlsapi.NSIDPublishKeyPackage,
				&mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: mlstest.Suite.String(), IdempotencyKey: newKey()})
		},
		func() answer {
			return alice.post(mlsapi.NSIDUnregisterPushTarget,
				&mlsapi.UnregisterPushTargetInput{DeviceID: "none", IdempotencyKey: newKey()})
		},
		func() answer {
			return alice.post(mlsapi.NSIDSendMessage, alice.message(c, strings.Repeat("x", 26_000)))
		},
	}
	before := w.size()
	for i, write := range writes {
		n := 0
		a := write()
		for ; a.status == http.StatusOK; a = write() {
			n++
		}
		t.Logf("write %d succeeded %d times: %s", i, n, a.fails(http.StatusTooManyRequests, "QuotaExceeded"))
	}
	const documented = 768 << 20 // of one DID and day
	if grown := w.size() - before; grown > documented/100 || grown < documented/200 {
		t.Errorf("the database has grown by %d bytes; docs/QUOTAS.md says %d", grown, documented/100)
	} else {
		t.Logf("the database has grown by %d bytes", grown)
	}
}

// size is how many bytes the tables take, with their indexes.
func (w *world) size() int {
	w.t.Helper()
	return w.count(`SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND
			relkind = 'r'`)
}

// H10: what one node has counted, another one knows after both have flushed, and one that starts
// later knows at once.
func TestQuotasOfNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	w.limits, w.now = quota.Limits{"messages-per-day": 2, quota.AddressShare: 100}, newClock(noon).now
	first := w.boot()
	firstQuotas := w.quotas
	second := w.boot()
	secondQuotas := w.quotas
	flush := func(q *quota.Counter) {
		if err := q.FlushAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sending(alice, c).send(first).ok()
	sending(alice, c).send(second).ok()
	sending(alice, c).send(second).ok() // it does not know of the first node's yet
	flush(secondQuotas)
	flush(firstQuotas)
	for _, node := range []*api.Server{first, second, w.boot()} {
		sending(alice, c).send(node).fails(http.StatusTooManyRequests, "QuotaExceeded")
	}
}

// H10: a person whom outsiders put into convos again and again can be put into no more of them,
// until it has accepted or left some. Somebody it knows can still invite it.
func TestOpenInvitations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim, friend := w.user(), w.user()
	known := friend.create(victim)
	victim.accept(known)
	w.limits = quota.Limits{quota.OpenInvitations: 2}
	node := w.boot()
	invite := func(by *user) answer { return creating(by, victim).send(node) }
	invite(w.user()).ok()
	last := w.user().on(node)
	open := last.create(victim)
	a := invite(w.user())
	if got := a.fails(http.StatusTooManyRequests, "QuotaExceeded"); got != "quota open-invitations is used up" {
		t.Error(got)
	}
	if got := a.header.Get("Retry-After"); got != "3600" {
		t.Errorf("Retry-After %q", got)
	}
	outsider := w.user()
	c := outsider.create()
	outsider.on(node).post(mlsapi.NSIDAddMembers, outsider.addition(c, victim)).fails(http.StatusTooManyRequests,
		"QuotaExceeded")
	invite(friend).ok()
	victim.accept(open)
	victim.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: open.id}).ok()
	invite(last).ok()
}

// S3: one inviter, whatever it does, has at most three invitations of an outsider open or declined
// in a day. The answer has no numbers. A retry gets its first answer, and everybody else can
// invite.
func TestInvitationsOfOneInviter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Defaults()
	node := w.boot()
	victim, friend, mallory := w.user().on(node), w.user().on(node), w.user().on(node)
	refused := func(a answer) {
		t.Helper()
		if got := a.fails(http.StatusTooManyRequests, "QuotaExceeded"); got != "quota invitations-to-one-person is used up" {
			t.Error(got)
		}
		if got := a.header.Get("Retry-After"); got != "3600" {
			t.Errorf("Retry-After %q", got)
		}
	}
	leave := func(c *convo) {
		t.Helper()
		victim.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	}
	first := mallory.creation(newGroup(t), victim)
	created := mallory.post(mlsapi.NSIDCreateConvo, first)
	c := &convo{id: read[mlsapi.ConvoView](t, created.ok()).ID}
	leave(c)
	leave(mallory.create(victim)) // it declines each
	open := mallory.create(victim)
	own := mallory.create() // a convo of mallory's own does not count
	refused(creating(mallory, victim).send(node))
	refused(mallory.post(mlsapi.NSIDAddMembers, mallory.addition(own, victim)))
	mallory.post(mlsapi.NSIDCreateConvo, first).replays(created)
	creating(friend, victim).send(node).ok()

	// What was accepted does not count, also when the person has left.
	victim.accept(open)
	leave(open)
	leave(mallory.create(victim))
	refused(creating(mallory, victim).send(node))

	// A day later the declined ones are forgotten, the open ones are not.
	w.exec(`UPDATE invitations SET created_at = created_at - interval '1 day'`)
	mallory.create(victim)
	mallory.create(victim)
	leave(mallory.create(victim))
	refused(creating(mallory, victim).send(node))
	w.exec(`UPDATE invitations SET created_at = created_at - interval '1 day'`)
	mallory.create(victim)
	refused(creating(mallory, victim).send(node))
}

// S3: to be put again into a convo that one has left counts, and so does to be taken out by the
// inviter.
func TestInvitationsIntoOneConvo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Defaults()
	node := w.boot()
	victim, mallory := w.user().on(node), w.user().on(node)
	c := mallory.create()
	for range 3 {
		mallory.add(c, victim)
		victim.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	}
	mallory.post(mlsapi.NSIDAddMembers, mallory.addition(c, victim)).fails(http.StatusTooManyRequests, "QuotaExceeded")
}

// S3: the invitations of one inviter that arrive at the same moment count each other.
func TestInvitationsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Defaults()
	node := w.boot()
	victim, mallory := w.user(), w.user()
	calls := make([]request, 8)
	for i := range calls {
		calls[i] = creating(mallory, victim)
	}
	stored := 0
	for _, a := range together(len(calls), func(i int) answer { return calls[i].send(node) }) {
		if a.status == http.StatusOK {
			stored++
		}
	}
	if stored != 3 {
		t.Errorf("%d invitations are stored, want 3", stored)
	}
}

// S3: the DIDs of one address fill at most a tenth of a person's open invitations in a day. Others
// can still invite the person.
func TestInvitationsOfAnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Limits{quota.OpenInvitations: 40, quota.OneInviter: 3}
	node := w.boot()
	victim := w.user()
	for range 4 {
		creating(w.user(), victim).send(node).ok()
	}
	a := creating(w.user(), victim).send(node)
	if got := a.fails(http.StatusTooManyRequests, "QuotaExceeded"); got !=
		"quota address-invitations-to-one-person is used up" {
		t.Error(got)
	}
	creating(w.user(), w.user()).send(node).ok()
	w.exec(`UPDATE invitations SET address = '198.51.100.1'`)
	creating(w.user(), victim).send(node).ok()
}

// S3: a block declines the open invitations of the blocked, those of others stay.
func TestBlockDeclines(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]func(victim, mallory *user, c *convo){
		"blockActor": func(victim, mallory *user, _ *convo) {
			victim.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: mallory.did()}).ok()
		},
		"leaveConvo": func(victim, _ *user, c *convo) {
			yes := true
			victim.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, Block: &yes}).ok()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.limits = quota.Limits{quota.OpenInvitations: 4}
			node := w.boot()
			victim, mallory, friend, outsider := w.user().on(node), w.user().on(node), w.user().on(node), w.user().on(node)
			accepted := mallory.create(victim)
			open := []*convo{mallory.create(victim), mallory.create(victim), mallory.create(victim)}
			victim.accept(accepted)
			kept := friend.create(victim)
			creating(outsider, victim).send(node).fails(http.StatusTooManyRequests, "QuotaExceeded")
			block(victim, mallory, open[1])
			for _, c := range open {
				victim.get(mlsapi.NSIDGetEpoch, "convoId", c.id).fails(http.StatusForbidden, mlsapi.ErrNotMember)
			}
			for _, c := range []*convo{accepted, kept} {
				victim.get(mlsapi.NSIDGetEpoch, "convoId", c.id).ok()
			}
			creating(outsider, victim).send(node).ok()
		})
	}
}

// H10: a write that fails has used nothing.
func TestFailedWritesDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, faulty)
	alice := w.user()
	c := alice.create()
	existing := alice.creation(c.group)
	w.limits = quota.Limits{"convos-per-day": 1, "messages-per-day": 1, "records-per-day": 1, quota.AddressShare: 1}
	alice = alice.on(w.boot())
	alice.post(mlsapi.NSIDCreateConvo, existing).fails(http.StatusConflict, mlsapi.ErrGroupAlreadyExists)
	creating(alice).send(alice.w.server).ok()
	late := alice.message(c, "late")
	late.Epoch, late.Ciphertext = 7, mlstest.Message(c.group, 7, "late")
	alice.post(mlsapi.NSIDSendMessage, late).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	failpointtest.Arm(t, w.faults, failpoint.BeforeCommit, mlsapi.NSIDSendMessage, failpoint.Error)
	lost := alice.message(c, "lost")
	if a := alice.post(mlsapi.NSIDSendMessage, lost); a.status < http.StatusInternalServerError {
		t.Fatalf("status %d", a.status)
	}
	alice.post(mlsapi.NSIDSendMessage, lost).ok()
	alice.post(mlsapi.NSIDSendMessage, alice.message(c, "more")).fails(http.StatusTooManyRequests, "QuotaExceeded")
}

// H10: a rejected KeyPackage of a batch counts, because its signatures were verified. A duplicate
// does not.
func TestRejectedKeyPackagesCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Limits{"key-packages-per-day": 4, quota.AddressShare: 1}
	alice := w.user().on(w.boot())
	good, _ := alice.KeyPackage(t)
	bad, _ := alice.KeyPackage(t)
	bad = flipped(bad, len(bad)-1)
	publish := func(bodies ...[]byte) answer {
		in := &mlsapi.PublishKeyPackagesInput{}
		for _, body := range bodies {
			in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: body, CipherSuite: mlstest.Suite.String()})
		}
		return alice.post(mlsapi.NSIDPublishKeyPackages, in)
	}
	publish(good, bad).ok() // 2 are used
	publish(good, bad).ok() // 3
	publish(good, bad).fails(http.StatusTooManyRequests, "QuotaExceeded")
	publish(good).ok()
	publish(good).ok()
	publish(bad).ok() // 4
	publish(bad).fails(http.StatusTooManyRequests, "QuotaExceeded")
}

// D8: a device whose clock is wrong publishes what is rejected, again and again. That uses up no quota:
// once the clock is right, it publishes.
func TestUntimelyKeyPackagesDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limits = quota.Limits{"key-packages-per-day": 2, quota.AddressShare: 1}
	alice := w.user().on(w.boot())
	publish := func(options ...mlstest.Option) string {
		in := &mlsapi.PublishKeyPackagesInput{}
		for range 2 {
			body, _ := alice.KeyPackage(t, options...)
			in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: body, CipherSuite: mlstest.Suite.String()})
		}
		return read[mlsapi.PublishKeyPackagesOutput](t, alice.post(mlsapi.NSIDPublishKeyPackages, in).ok()).Results[1].Status
	}
	soon := time.Now().Add(70 * time.Minute)
	for range 3 {
		if status := publish(mlstest.Lifetime(soon, soon.Add(30*24*time.Hour))); status != "rejected" {
			t.Fatalf("a KeyPackage of a device whose clock is ahead is %s", status)
		}
	}
	if status := publish(); status != "published" {
		t.Errorf("a KeyPackage of a right clock is %s", status)
	}
}

// H10: to be invited makes nobody known. Who was put into a convo and has not accepted it is an
// outsider when it is put into the next.
func TestInvitedAgainIsStillARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	w.limits = quota.Limits{"outsiders-invited-per-day": 1, quota.AddressShare: 10}
	alice = alice.on(w.boot())
	first := alice.create(bob)
	creating(alice, bob).send(alice.w.server).fails(http.StatusTooManyRequests, "QuotaExceeded")
	c := alice.create()
	alice.post(mlsapi.NSIDAddMembers, alice.addition(c, bob)).fails(http.StatusTooManyRequests, "QuotaExceeded")
	bob.accept(first)
	second := read[mlsapi.CreateConvoOutput](t, creating(alice, bob).send(alice.w.server).ok())
	for _, id := range []string{first.id, second.ID} {
		bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: id}).ok()
	}
	creating(alice, bob).send(alice.w.server).fails(http.StatusTooManyRequests, "QuotaExceeded")
}

// A convo whose quota is used up is to an outsider a convo that never existed. So is any convo to
// an outsider whose own quota is used up.
func TestOutsidersSeeNoQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, outsider := w.user(), w.user()
	c := alice.create()
	own := outsider.create()
	never := &convo{uuid.NewString(), newGroup(t), c.epoch}
	full := alice.message(c, "hello")
	w.limits = quota.Limits{quota.ConvoBytes: int64(len(full.Ciphertext)), "messages-per-day": 1, quota.AddressShare: 100}
	node := w.boot()
	alice, outsider = alice.on(node), outsider.on(node)
	alice.post(mlsapi.NSIDSendMessage, full).ok()
	same := func() {
		t.Helper()
		others := outsider.calls(never)
		for name, a := range outsider.calls(c) {
			b := others[name]
			if a.status != b.status || !bytes.Equal(a.body, b.body) {
				t.Errorf("%s: a convo that exists answers %d %s, one that does not %d %s", name, a.status, a.body, b.status, b.body)
			}
		}
	}
	same()
	outsider.post(mlsapi.NSIDSendMessage, outsider.message(own, "x")).ok()
	same()
}
