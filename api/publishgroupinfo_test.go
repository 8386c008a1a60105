package api_test

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
)

// offers offers a GroupInfo without a commit.
func (p *phone) offers(c *convo, info []byte) answer {
	p.w.t.Helper()
	return p.post(mlsapi.NSIDPublishGroupInfo, &mlsapi.PublishGroupInfoInput{ConvoID: c.id, GroupInfo: info})
}

// info is the GroupInfo of the phone's group.
func (p *phone) info() []byte {
	p.w.t.Helper()
	return must(p.group.GroupInfo())(p.w)
}

// A convo whose committer has sent no GroupInfo has a way in again once a member offers one.
func TestPublishGroupInfo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.phone(), w.phone(), w.phone()
	c := alice.found(bob)
	old := bob.info()
	in := submit(c, must(alice.group.StageUpdate())(w))
	in.GroupInfo = nil
	alice.post(mlsapi.NSIDSubmitCommit, in).ok()
	follow(c, alice, bob)
	stored := func() answer { return bob.get(mlsapi.NSIDGetGroupInfo, "convoId", c.id) }
	stored().fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)

	mallory.offers(c, bob.info()).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	bob.offers(c, old).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	bob.offers(c, alice.info()).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo) // another member's signature
	wrong := bob.info()
	bob.offers(c, flipped(wrong, len(wrong)-1)).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	mallory.found()
	bob.offers(c, mallory.info()).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo) // of another group
	stored().fails(http.StatusNotFound, mlsapi.ErrGroupInfoNotFound)

	if out := read[mlsapi.PublishGroupInfoOutput](t, bob.offers(c, bob.info()).ok()); out.Epoch != c.epoch {
		t.Errorf("the answer has the epoch %d, the convo is in %d", out.Epoch, c.epoch)
	}
	last := alice.info()
	alice.offers(c, last).ok()
	got := read[mlsapi.GetGroupInfoOutput](t, stored().ok())
	if !bytes.Equal(got.GroupInfo, last) || got.Epoch != c.epoch {
		t.Errorf("the last GroupInfo did not win: epoch %d", got.Epoch)
	}
	fresh := bob.user.phone()
	fresh.post(mlsapi.NSIDProcessExternalCommit,
		rejoin(c, must(fresh.mls.JoinExternal(got.GroupInfo, mlsclient.NoLeaf))(w))).ok()
	if level := *bob.convo(c).CommitLevel; level != "verified" {
		t.Errorf("the commit of who has come in is %s", level)
	}
}

// A single member does not decide which group is the right one: not in a dispute, not of a forked
// epoch, and not against what another member has said of a group that the server could not verify.
func TestPublishGroupInfoNeedsAgreement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	c := alice.found(bob, carol)
	alice.mls.HideHandshakes(true)
	staged := must(alice.group.StageUpdate())(w)
	alice.post(mlsapi.NSIDSubmitCommit, submit(c, staged)).ok() // alice vouches for its group
	c.epoch++
	for _, p := range []*phone{alice, bob, carol} {
		must(p.group.Process(staged.Commit))(w)
	}
	bob.offers(c, bob.info()).ok()
	// bob has gone on alone: its group of the next epoch is another one than alice's.
	lone := must(bob.group.StageUpdate())(w)
	if err := bob.group.Confirm(); err != nil {
		t.Fatal(err)
	}
	next := must(alice.group.StageUpdate())(w)
	alice.post(mlsapi.NSIDSubmitCommit, submit(c, next)).ok()
	c.epoch++
	for _, p := range []*phone{alice, carol} {
		must(p.group.Process(next.Commit))(w)
	}
	if lone.GroupInfo == nil || bob.group.Epoch() != alice.group.Epoch() {
		t.Fatal("bob has no group of its own in this epoch")
	}
	bob.offers(c, bob.info()).fails(http.StatusBadRequest, mlsapi.ErrInvalidGroupInfo)
	carol.offers(c, carol.info()).ok()

	report := func(p *phone) {
		hash := sha256.Sum256(p.group.Authenticator())
		p.post(mlsapi.NSIDReportEpoch, &mlsapi.ReportEpochInput{ConvoID: c.id, Epoch: c.epoch,
			AuthenticatorHash: hash[:]}).ok()
	}
	report(carol)
	report(bob) // the epoch is forked
	carol.offers(c, carol.info()).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	bob.failed(c, c.epoch)
	carol.failed(c, c.epoch)
	carol.offers(c, carol.info()).fails(http.StatusConflict, mlsapi.ErrConvoDisputed)
}
