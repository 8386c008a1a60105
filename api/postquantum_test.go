package api_test

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/mls"
)

// TestXWingConvo: 99 people with ten devices each are in a group of the suite X-Wing from its start.
// Its GroupInfo and its Welcome have more than 1 MiB, the most that a suite of RFC 9420 has. Devices
// get the Welcome, and members get the GroupInfo, byte for byte.
func TestXWingConvo(t *testing.T) {
	t.Parallel()
	const people, devices = 99, 10
	w := newWorld(t)
	alice := w.user()
	alice.Suite = mls.SuiteXWing
	group := newGroup(t)
	in := alice.creation(group)
	in.CipherSuite, in.CurrentEpoch = mls.SuiteXWing.String(), ptr(int64(1))

	members := []*mlstest.Device{alice.Device}
	var others []*user
	var refs []mls.KeyPackageRef
	for range people {
		person := w.user()
		in.InitialMembers = append(in.InitialMembers, person.did())
		batch := &mlsapi.PublishKeyPackagesInput{IdempotencyKey: newKey()}
		for range devices {
			u := person.device()
			u.Suite = mls.SuiteXWing
			body, _ := u.KeyPackage(t)
			batch.KeyPackages = append(batch.KeyPackages, mlsapi.Item{
				KeyPackage: body, CipherSuite: mls.SuiteXWing.String()})
			members, others = append(members, u.Device), append(others, u)
		}
		person.post(mlsapi.NSIDPublishKeyPackages, batch).ok()
	}
	for first := 0; first < people; first += 50 {
		var some []*user
		for i := first; i < min(first+50, people); i++ {
			some = append(some, others[i*devices])
		}
		refs = append(refs, alice.claim(some...)...)
	}
	if len(refs) != people*devices {
		t.Fatalf("%d KeyPackages were claimed", len(refs))
	}
	info := mlstest.GroupInfo(t, group, 1, members...)
	in.GroupInfo, in.WelcomeMessage = info, mlstest.WelcomeIn(t, mls.SuiteXWing, refs...)
	if len(info) <= 1<<20 || len(in.WelcomeMessage) <= 1<<20 {
		t.Fatalf("GroupInfo %d, Welcome %d bytes: no more than a suite of RFC 9420 has", len(info), len(in.WelcomeMessage))
	}
	view := read[mlsapi.ConvoView](t, alice.post(mlsapi.NSIDCreateConvo, in).ok())
	if view.CipherSuite != mls.SuiteXWing.String() || view.Epoch != 1 {
		t.Errorf("%+v", view)
	}
	c := &convo{id: view.ID, group: group, epoch: 1}
	got := read[mlsapi.GetGroupInfoOutput](t, alice.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id).ok())
	if !bytes.Equal(got.GroupInfo, info) {
		t.Error("the GroupInfo is not what was sent")
	}
	for _, u := range []*user{others[0], others[len(others)-1]} {
		if got := u.fetched(c, "deviceId", u.deviceID()); !bytes.Equal(got.Welcome, in.WelcomeMessage) {
			t.Error("the Welcome is not what was sent")
		}
	}
}

// TestCommitOfAnotherSuite: a commit as large as only a post-quantum suite allows is refused in a
// suite of RFC 9420. The refusal says both sizes.
func TestCommitOfAnotherSuite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create(w.user())
	commit := mlstest.Commit(c.group, c.epoch, string(make([]byte, 1<<20)))
	message := alice.post(mlsapi.NSIDSubmitCommit, &mlsapi.SubmitCommitInput{ConvoID: c.id, Commit: commit}).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidCommit)
	for _, size := range []int{len(commit), 1 << 20} {
		if !strings.Contains(message, strconv.Itoa(size)) {
			t.Errorf("the refusal does not say %d: %s", size, message)
		}
	}
}
