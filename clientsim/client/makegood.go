package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Phase says how far MakeGood goes. A client goes on to the next phase when the log has not grown
// for a while: docs/RECOVERY.md says how long.
type Phase int

const (
	// ResendMessages sends again the writes of the epoch that the server is in.
	ResendMessages Phase = iota
	// ResendCommits also sends again the commit that ends this epoch.
	ResendCommits
	// EnterAgain no longer waits for lost commits. A device whose group is ahead of the server enters
	// the group again. A device that added members adds the members again.
	EnterAgain
	// WriteAnew encrypts lost messages again if their bytes no longer fit. It comes last, because a
	// device that is still ahead can never read the new messages.
	WriteAnew
)

// Regained is what one call of MakeGood did.
type Regained struct {
	Same     int    // writes that the server accepted again, byte for byte
	Anew     int    // messages that were encrypted again, and members that were invited again
	Rejoined bool   // the phone entered again by external commit
	Waiting  string // what the phone waits for, or ""
}

// Progress reports whether the call changed anything on the server.
func (r Regained) Progress() bool { return r.Same+r.Anew > 0 || r.Rejoined }

// MakeGood sends again the writes of a convo that the server has lost: the same bytes under the
// same keys, if they fit the epoch that the server is in. It reads the log before and after
// sending. The caller repeats MakeGood until Waiting is "".
func (p *Phone) MakeGood(ctx context.Context, convo string, phase Phase) (r Regained, err error) {
	defer Catch(&err)
	err = p.Sync(ctx, convo)
	switch forked := errors.Is(err, ErrForked); {
	case xrpc.ErrorName(err) == mlsapi.ErrNotMember: // the account has left, or was removed
		return r, nil
	case xrpc.ErrorName(err) == mlsapi.ErrConvoNotFound:
		r.Waiting = "the commit that added it"
		if phase >= EnterAgain {
			err = p.withdrawUsed(ctx, convo)
			return r, err
		}
		return r, nil
	case err != nil && !forked:
		return r, err
	case !forked:
		Check(p.resend(ctx, convo, phase, &r))
	}
	ahead := Must(p.ahead(ctx, convo))
	if ahead {
		if phase < EnterAgain || r.Progress() {
			r.Waiting = "a commit of another device"
			return r, nil
		}
		r.Rejoined = true
		Check(p.Rejoin(ctx, convo))
	}
	if phase >= EnterAgain {
		Check(p.makeAnew(ctx, convo, phase, &r))
	}
	if r.Waiting == "" {
		Check(p.confirmAgain(ctx, convo))
	}
	return r, nil
}

// confirmAgain confirms the Welcome that the phone joined with, if the server has lost the
// confirmation.
func (p *Phone) confirmAgain(ctx context.Context, convo string) error {
	ref := p.UsedRef(convo)
	if ref == "" {
		return nil
	}
	_, err := p.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ref))
	switch xrpc.ErrorName(err) {
	case mlsapi.ErrWelcomeNotFound, mlsapi.ErrWelcomeConsumed, mlsapi.ErrNotMember:
		return nil
	}
	if err == nil {
		_, err = p.ConfirmWith(ctx, xrpc.ConfirmCall(convo, ref, true, ""))
	}
	return err
}

// UsedRef returns the KeyPackageRef by which the phone joined a convo, or "".
func (p *Phone) UsedRef(convo string) string {
	ref, _ := p.Disk.Read(usedPrefix + convo)
	return string(ref)
}

// ahead reports whether the phone's group has left the epoch that the server is in, or has another
// history than the server's log.
func (p *Phone) ahead(ctx context.Context, convo string) (_ bool, err error) {
	defer Catch(&err)
	err = p.Sync(ctx, convo)
	if errors.Is(err, ErrForked) {
		return true, nil
	}
	if err != nil {
		if xrpc.ErrorName(err) == mlsapi.ErrNotMember { // the phone's leave was sent again
			return false, nil
		}
		return false, err
	}
	group := Must(p.Group(convo))
	view := Must(p.Convo(ctx, convo))
	return group.Epoch() > uint64(view.Epoch), nil
}

// resend sends a convo's lost drafts in their order, unless they must wait for other devices. It
// sends at most one commit, because others may have messages of the epoch that the commit creates.
func (p *Phone) resend(ctx context.Context, convo string, phase Phase, r *Regained) (err error) {
	defer Catch(&err)
	lost, err := p.lostDrafts(convo)
	if err != nil || len(lost) == 0 {
		return err
	}
	view := Must(p.Convo(ctx, convo))
	epoch := uint64(view.Epoch)
	for i := range lost {
		k := &lost[i]
		switch {
		case k.Kind == kindSend && k.Epoch == epoch && !k.Forked:
		case k.Kind == kindLeave && r.Waiting == "":
		case k.isCommit() && k.Epoch == epoch+1 && !k.Forked && phase >= ResendCommits:
		default:
			r.Waiting = fmt.Sprintf("its %s of epoch %d, and the server is in %d", k.Kind, k.Epoch, epoch)
			continue
		}
		taken := Must(p.sendKept(ctx, k))
		if !taken {
			r.Waiting = fmt.Sprintf("its %s of epoch %d, which is refused", k.Kind, k.Epoch)
			continue
		}
		r.Same++
		if k.isCommit() {
			epoch, phase = k.Epoch, ResendMessages
		}
	}
	return nil
}

// lostDrafts returns the acknowledged drafts of a convo that the log does not have. The phone has
// read the log to its end.
func (p *Phone) lostDrafts(convo string) (_ []keptDraft, err error) {
	defer Catch(&err)
	thread, _ := Must2(p.Open(convo))
	items := Must(p.Inbox(convo))
	there := map[history.Digest]bool{}
	for _, item := range items {
		there[item.Digest] = true
	}
	kept, err := p.keptDrafts(convo)
	return slices.DeleteFunc(kept, func(k keptDraft) bool {
		return there[k.Digest] || k.Kind != kindLeave && !thread.Rewound && k.Epoch < thread.Entered
	}), err
}

// leaveBranch marks the lost drafts of a convo, except a leave, because the device enters the group
// again.
func (p *Phone) leaveBranch(convo string, changes map[string][]byte) (err error) {
	defer Catch(&err)
	lost := Must(p.lostDrafts(convo))
	for _, k := range lost {
		k.Forked = k.Kind != kindLeave
		changes[k.name] = Must(json.Marshal(&k.Draft))
	}
	return nil
}

// isCommit reports whether the draft moves the epoch.
func (d *Draft) isCommit() bool {
	return d.Kind == kindAdd || d.Kind == kindRemove || d.Kind == kindCommit || d.Kind == kindRejoin
}

// sendKept sends an acknowledged draft again. taken is false if the server refuses it.
func (p *Phone) sendKept(ctx context.Context, k *keptDraft) (taken bool, err error) {
	defer Catch(&err)
	answer, err := p.Net.Do(ctx, p.Account, k.Call)
	var named *xrpc.CallError
	if errors.As(err, &named) && named.Status/100 == 4 && named.Status != http.StatusUnauthorized {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if k.Kind == kindRejoin { // the phone entered the group when the commit was first acknowledged
		out := Must(xrpc.Decode[mlsapi.ProcessExternalCommitOutput](answer.Body))
		p.Model.Acknowledged(p.Account, k.Call)
		return true, p.Model.Committed(k.Convo(), k.Digest, out.Seq)
	}
	Check(p.Acknowledge(ctx, &k.Draft, answer))
	return true, p.Save(map[string][]byte{k.name: nil})
}

// makeAnew makes the lost additions again, and then the lost messages. Other lost commits only
// changed keys, or any member makes them again.
func (p *Phone) makeAnew(ctx context.Context, convo string, phase Phase, r *Regained) (err error) {
	defer Catch(&err)
	lost := Must(p.lostDrafts(convo))
	r.Waiting = ""
	for i := range lost {
		k := &lost[i]
		switch {
		case k.Kind == kindAdd:
			err = p.addAnew(ctx, convo, k)
			r.Anew++
		case k.isCommit():
			err = p.Save(map[string][]byte{k.name: nil})
		case phase < WriteAnew:
			r.Waiting = "others, before it writes again"
		case k.Kind == kindLeave:
			var taken bool
			if taken, err = p.sendKept(ctx, k); err == nil && !taken {
				err = fmt.Errorf("%s: its leave is refused", p.Name)
			}
			r.Same++
		case k.Kind == kindSend:
			changes := map[string][]byte{k.name: nil, looseName(convo, k.Digest): nil}
			err = errors.Join(p.Send(ctx, convo, k.Text), p.Save(changes))
			r.Anew++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addAnew adds the members of a lost addition who are not on the roster.
func (p *Phone) addAnew(ctx context.Context, convo string, k *keptDraft) (err error) {
	defer Catch(&err)
	roster := Must(p.Roster(ctx, convo))
	for _, did := range k.DIDs {
		if slices.Contains(roster, did) {
			continue
		}
		Check(p.Add(ctx, convo, did))
	}
	return p.Save(map[string][]byte{k.name: nil})
}

// MakeGoodPackages repeats publications of KeyPackages that the server may have lost. A KeyPackage
// that the server still has is a duplicate. A used KeyPackage comes back too, because the commit
// that used it needs it.
func (p *Phone) MakeGoodPackages(ctx context.Context) (err error) {
	defer Catch(&err)
	kept := Must(p.keptDrafts(""))
	for i := range kept {
		if k := &kept[i]; k.Kind == kindPublish || k.Kind == kindPublishMany {
			Must(p.Net.Do(ctx, p.Account, k.Call))
		}
	}
	return nil
}

// withdrawUsed withdraws the KeyPackage by which the phone joined a convo, if the addition does not
// come back. The phone has no key for the KeyPackage any more, and the server may hand it out
// again.
func (p *Phone) withdrawUsed(ctx context.Context, convo string) error {
	ref := p.UsedRef(convo)
	if ref == "" {
		return nil
	}
	device := sha256.Sum256(p.Device.SignatureKey())
	_, err := p.Net.Do(ctx, p.Account, xrpc.WithdrawCall(hex.EncodeToString(device[:]), xrpc.NewKey(), ref))
	return err
}

// Bounds of the acknowledged drafts that a phone keeps. docs/RECOVERY.md says why.
const (
	maxKept     = 200
	longestKept = 7 * 24 * time.Hour
)

// keptDraft is an acknowledged draft and its file.
type keptDraft struct {
	Draft
	name string
}

// keep adds an acknowledged draft to the files to be written. It removes the drafts that are too
// many or too old. The names of the files are in the order of the acknowledgements.
func (p *Phone) keep(d *Draft, changes map[string][]byte) (err error) {
	defer Catch(&err)
	data := Must(json.Marshal(d))
	now := time.Now()
	names := p.Disk.List(keptPrefix)
	for i, name := range names {
		at, err := strconv.ParseInt(strings.TrimPrefix(name, keptPrefix), 10, 64)
		Check(errs.Wrap(err, "%s: %s", p.Name, name))
		if len(names)-i >= maxKept || now.Sub(time.Unix(0, at)) > longestKept {
			changes[name] = nil
		}
	}
	changes[fmt.Sprintf("%s%020d", keptPrefix, now.UnixNano())] = data
	return nil
}

// keptDrafts returns the acknowledged drafts of a convo, in the order of their acknowledgements.
// For the convo "", it returns publications and creates.
func (p *Phone) keptDrafts(convo string) (kept []keptDraft, err error) {
	for _, name := range p.Disk.List(keptPrefix) {
		data, _ := p.Disk.Read(name)
		k := keptDraft{name: name}
		if err := json.Unmarshal(data, &k.Draft); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.Name, name, err)
		}
		if k.Convo() == convo {
			kept = append(kept, k)
		}
	}
	return kept, nil
}

// dropKept adds the removal of a convo's kept drafts to changes.
func (p *Phone) dropKept(convo string, changes map[string][]byte) error {
	kept, err := p.keptDrafts(convo)
	for _, k := range kept {
		changes[k.name] = nil
	}
	return err
}

// rewind sets a thread back to the last entry that both the phone and the server have. Later
// entries of the inbox become loose, because they cannot be decrypted a second time. When the bytes
// of a loose entry come back at another place, take finds the entry by its digest.
func (p *Phone) rewind(ctx context.Context, thread *Thread) (err error) {
	defer Catch(&err)
	items := Must(p.Inbox(thread.ConvoID))
	common := Must(p.common(ctx, thread, items))
	changes := map[string][]byte{}
	for _, item := range items[common:] {
		changes[inboxName(thread.ConvoID, item.Seq)] = nil
		Check(p.writeItem(looseName(thread.ConvoID, item.Digest), item, changes))
	}
	for _, name := range p.Disk.List(seenPrefix + thread.ConvoID + "/") {
		changes[name] = nil
	}
	thread.Rewound = true
	if common > 0 {
		thread.Cursor, thread.Last = items[common-1].Seq, items[common-1].ID
	} else {
		thread.First, thread.Cursor, thread.Last = 0, 0, ""
		if len(items) > 0 && items[0].Past && items[0].Commit {
			thread.AddedBy = items[0].Digest
		}
	}
	Check(p.openThread(thread, changes))
	return p.Save(changes)
}

// common counts the first entries of the inbox that the server still has. If the server has an
// entry, it has all earlier entries.
func (p *Phone) common(ctx context.Context, thread *Thread, items []history.Item) (n int, err error) {
	defer Catch(&err)
	low, high := 0, len(items) // the server has the items below low, and lacks the items from high on
	for low < high {
		middle := (low + high) / 2
		has := Must(p.serverHas(ctx, thread.ConvoID, items[middle]))
		if has {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// serverHas asks whether the server has an entry at the place where it was read. An entry that came
// back at the same place has another id.
func (p *Phone) serverHas(ctx context.Context, convo string, item history.Item) (bool, error) {
	call := xrpc.MessagesSinceCall(convo, "all", item.ID, 1)
	if item.ID == "" { // the phone's own external commit, which the phone has not read
		call = xrpc.MessagesCall(convo, "all", item.Seq-1, 1)
	}
	answer, err := p.Net.Do(ctx, p.Account, call)
	if xrpc.ErrorName(err) == mlsapi.ErrInvalidCursor {
		return false, nil
	}
	if err != nil || item.ID != "" {
		return err == nil, err
	}
	page, err := xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body)
	if err != nil {
		return false, fmt.Errorf("%s: getMessages: %w", p.Name, err)
	}
	return len(page.Messages) == 1 && page.Messages[0].Seq == item.Seq &&
		history.DigestOf(page.Messages[0].Ciphertext) == item.Digest, nil
}

// looseName names the file of an entry that the phone has read and the server has lost.
func looseName(convo string, d history.Digest) string {
	return fmt.Sprintf("%s%s/%x", loosePrefix, convo, d[:])
}

// Loose returns the entries of a convo that the phone has read and the server has lost.
func (p *Phone) Loose(convo string) ([]history.Item, error) {
	return p.items(loosePrefix + convo + "/")
}

// takeLoose returns the loose entry with a digest, if there is one. The entry is then no longer
// loose.
func (p *Phone) takeLoose(convo string, d history.Digest, changes map[string][]byte) (item history.Item, ok bool,
	err error) {
	name := looseName(convo, d)
	data, ok := p.Disk.Read(name)
	if !ok {
		return item, false, nil
	}
	changes[name] = nil
	return item, true, json.Unmarshal(data, &item)
}

// forgetLoose removes the loose entry with a text. The text has come back in another ciphertext.
func (p *Phone) forgetLoose(convo, text string, changes map[string][]byte) error {
	loose, err := p.Loose(convo)
	for _, item := range loose {
		if !item.Commit && item.Text == text {
			changes[looseName(convo, item.Digest)] = nil
		}
	}
	return err
}
