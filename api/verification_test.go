package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/mlstest"
)

// devices returns n devices of u's, u's own the first.
func (u *user) devices(n int) []*mlstest.Device {
	all := []*mlstest.Device{u.Device}
	for len(all) < n {
		all = append(all, mlstest.NewDevice(u.w.t, u.did().String()))
	}
	return all
}

// waitForPlaces waits until n requests wait for a place to verify in.
func (w *world) waitForPlaces(n int) {
	w.t.Helper()
	await.Until(w.t, fmt.Sprint(n, " requests wait for a place"), func() bool { return w.server.WaitingForPlaces() >= n })
}

// H1: the GroupInfo of a new convo was verified on a connection of the database. 20 callers whose
// verifications wait hold none of the 16 connections, and another caller is served.
func TestCostlyGroupInfo(t *testing.T) {
	t.Parallel()
	const callers = 20
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	inputs, by := make([]*mlsapi.CreateConvoInput, callers), make([]*user, callers)
	for i := range by {
		by[i] = w.user()
		group := newGroup(t)
		inputs[i] = by[i].creation(group)
		inputs[i].GroupInfo = by[i].groupInfo(group, 0)
	}
	release := w.server.TakePlaces(t)
	answers := make(chan []answer)
	go func() {
		answers <- together(callers, func(i int) answer { return by[i].post(mlsapi.NSIDCreateConvo, inputs[i]) })
	}()
	w.waitForPlaces(callers)
	if n := w.db.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d requests that wait for a place hold %d connections", callers, n)
	}
	alice.get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()
	release()
	first := <-answers
	for i, a := range first {
		a.ok()
		by[i].post(mlsapi.NSIDCreateConvo, inputs[i]).replays(a)
	}
}

// H1: a commit's GroupInfo, its leaves and its KeyPackages were verified under the lock of the
// convo. While that waits, others write to the convo.
func TestCostlyCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	devices := slices.Insert(alice.devices(40), 1, bob.Device)
	hidden := func(leaves []*mlstest.Device) func() answer {
		in := &mlsapi.SubmitCommitInput{
			ConvoID: c.id, IdempotencyKey: newKey(), Commit: mlstest.Commit(c.group, c.epoch, *newKey()),
			GroupInfo: mlstest.GroupInfo(t, c.group, c.epoch+1, leaves...),
		}
		return func() answer { return alice.post(mlsapi.NSIDSubmitCommit, in) }
	}
	waits := func(name string, commit func() answer, write func()) {
		t.Helper()
		release := w.server.TakePlaces(t)
		done := make(chan answer)
		go func() { done <- commit() }()
		w.waitForPlaces(1)
		if n := w.db.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: a commit that waits for a place holds %d connections", name, n)
		}
		write()
		release()
		first := <-done
		first.ok()
		commit().replays(first)
	}
	bobWrites := func() { bob.send(c, "meanwhile") }
	waits("a tree that is not known", hidden(devices[:20]), bobWrites)
	c.epoch++
	waits("new leaves", hidden(devices), bobWrites)

	carol, dave := w.phone(), w.phone()
	verified := carol.found(dave)
	var others []*phone
	for range 9 {
		others = append(others, w.phone())
	}
	add := carol.addMembers(verified, must(carol.group.StageAdd(carol.fetch(others...)...))(w), others...)
	waits("added KeyPackages", func() answer { return carol.post(mlsapi.NSIDAddMembers, add) }, func() {
		dave.get(mlsapi.NSIDGetConvo, "convoId", verified.id).ok()
	})
	if level := *dave.convo(verified).CommitLevel; level != "verified" {
		t.Errorf("the commit's level is %s", level)
	}
}

// H1: the signatures of a batch of KeyPackages were verified on a connection of the database. A retry
// with the key, and the same KeyPackages without one, need no verification.
func TestCostlyKeyPackages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	in := &mlsapi.PublishKeyPackagesInput{IdempotencyKey: newKey()}
	for range 3 {
		body, _ := alice.KeyPackage(t)
		in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: body, CipherSuite: mlstest.Suite.String()})
	}
	in.KeyPackages[1].KeyPackage = flipped(in.KeyPackages[1].KeyPackage, len(in.KeyPackages[1].KeyPackage)-1)
	statuses := func(a answer) (all []string) {
		for _, r := range read[mlsapi.PublishKeyPackagesOutput](t, a.ok()).Results {
			all = append(all, r.Status)
		}
		return all
	}
	release := w.server.TakePlaces(t)
	done := make(chan answer)
	go func() { done <- alice.post(mlsapi.NSIDPublishKeyPackages, in) }()
	w.waitForPlaces(1)
	if n := w.db.Stat().AcquiredConns(); n != 0 {
		t.Errorf("a batch that waits for a place holds %d connections", n)
	}
	release()
	first := <-done
	if got := statuses(first); !slices.Equal(got, []string{"published", "rejected", "published"}) {
		t.Errorf("the results are %v", got)
	}
	release = w.server.TakePlaces(t)
	defer release()
	alice.post(mlsapi.NSIDPublishKeyPackages, in).replays(first)
	in = &mlsapi.PublishKeyPackagesInput{KeyPackages: []mlsapi.Item{in.KeyPackages[0], in.KeyPackages[2]}}
	if got := statuses(alice.post(mlsapi.NSIDPublishKeyPackages, in)); !slices.Equal(got,
		[]string{"duplicate", "duplicate"}) {
		t.Errorf("published again, the results are %v", got)
	}
}

// H1: a tree with more devices than the Welcome names KeyPackages is refused before its signatures
// are verified.
func TestMoreLeavesThanKeyPackages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mallory, victim := w.user(), w.user()
	group := newGroup(t)
	in := mallory.creation(group, victim)
	members := append([]*mlstest.Device{mallory.Device}, victim.devices(2)...)
	info := mlstest.GroupInfo(t, group, 1, members...)
	in.GroupInfo = flipped(info, len(info)-1) // its signature, which is verified later
	message := mallory.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	if !strings.Contains(message, "leaf 2 is new") {
		t.Errorf("a tree with one leaf too many is refused for another reason: %s", message)
	}
}
