package api_test

import (
	"net/http"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// TestConversation follows a convo from its creation until its last member leaves.
func TestConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob)
	if c.epoch != 1 {
		t.Fatalf("a convo created with a Welcome is in epoch %d, want 1", c.epoch)
	}
	welcomed := read[mlsapi.GetWelcomeOutput](t, bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id).ok())
	if *welcomed.Epoch != 1 || *welcomed.State != "in_flight" {
		t.Fatalf("the Welcome is %+v", welcomed)
	}
	bob.post(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true}).ok()
	bob.get(mlsapi.NSIDGetWelcome, "convoId", c.id).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)

	if sent := alice.send(c, "hello"); *sent.Seq != 1 || *sent.Epoch != 1 {
		t.Fatalf("the first message is at seq %d, epoch %d", *sent.Seq, *sent.Epoch)
	}
	alice.add(c, carol)
	if sent := bob.send(c, "hello carol"); *sent.Seq != 3 || *sent.Epoch != 2 {
		t.Fatalf("the message after the commit is at seq %d, epoch %d", *sent.Seq, *sent.Epoch)
	}
	if page := bob.page(c, "messageType", "all"); len(page.Messages) != 3 || *page.LastSeq != 3 || page.Cursor != nil {
		t.Fatalf("bob reads %+v", page)
	}
	if page := carol.page(c, "messageType", "all"); len(page.Messages) != 2 || page.Messages[0].Seq != 2 {
		t.Fatalf("carol reads what was before her: %+v", page)
	}
	commits := read[mlsapi.GetCommitsOutput](t, bob.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", "2").ok())
	if len(commits.Commits) != 1 || commits.Commits[0].Epoch != 2 {
		t.Fatalf("the commits from epoch 2 are %+v", commits.Commits)
	}
	convos := read[mlsapi.GetConvosOutput](t, carol.get(mlsapi.NSIDGetConvos).ok())
	if len(convos.Conversations) != 1 || len(convos.Conversations[0].Members) != 3 ||
		*convos.Conversations[0].Unread != 1 {
		t.Fatalf("carol's convos are %+v", convos)
	}
	if cursor := read[mlsapi.UpdateCursorOutput](t, carol.post(mlsapi.NSIDUpdateCursor,
		&mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: 3}).ok()); cursor.Seq != 3 {
		t.Fatalf("the cursor is at %d", cursor.Seq)
	}
	removed := read[mlsapi.LeaveConvoOutput](t, alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{
		ConvoID: c.id, TargetDID: ptr(carol.did()), Commit: mlstest.Commit(c.group, c.epoch, "remove carol"),
	}).ok())
	if removed.NewEpoch != 3 || *removed.Seq != 4 {
		t.Fatalf("the removal gives %+v", removed)
	}
	carol.get(mlsapi.NSIDGetMessages, "convoId", c.id).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).fails(http.StatusConflict,
		mlsapi.ErrLastMember)
}

func ptr[T any](v T) *T { return &v }
