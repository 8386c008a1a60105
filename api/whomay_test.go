package api_test

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
)

// whoMay is a convo of four people with real MLS. alice is its creator.
type whoMay struct {
	*world
	alice, bob, carol, dave *phone
	c                       *convo
}

func newWhoMay(t *testing.T, w *world) *whoMay {
	t.Helper()
	m := &whoMay{world: w, alice: w.phone(), bob: w.phone(), carol: w.phone(), dave: w.phone()}
	m.c = m.alice.found(m.bob, m.carol, m.dave)
	return m
}

// alone sends a proposal of by in clear.
func (m *whoMay) alone(by *phone, proposal []byte) (message []byte, a answer) {
	m.t.Helper()
	message = must(by.group.(mlsclient.Proposer).Propose(mlsclient.Raw, proposal))(m.world)
	return message, by.post(mlsapi.NSIDSendMessage, &mlsapi.SendMessageInput{
		ConvoID: m.c.id, SenderDID: by.did(), Epoch: m.c.epoch, Ciphertext: message, IdempotencyKey: newKey(),
	})
}

// byReference submits carol's commit that refers to a proposal of by, which is in the log although
// the server may have refused it: as if the server had not known the group when it came. It reports
// false if carol's library makes no such commit.
func (m *whoMay) byReference(by *phone, proposal []byte) (a answer, made bool) {
	m.t.Helper()
	message := must(by.group.(mlsclient.Proposer).Propose(mlsclient.Raw, proposal))(m.world)
	err := pgx.BeginFunc(m.t.Context(), m.db, func(tx pgx.Tx) error {
		_, err := messages.AppendEntitled(m.t.Context(), tx, messages.Draft{
			ConvoID: uuid.MustParse(m.c.id), GroupID: m.c.group, Sender: by.did(), Key: *newKey(), Hash: sha256.Sum256(message),
			Kind: mls.ContentTypeProposal, Epoch: m.c.epoch, Body: message,
		})
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := m.carol.group.Process(message); err != nil {
		m.t.Fatal(err)
	}
	staged := must(m.carol.group.StageUpdate())(m.world)
	if refers := must(mlsclient.RefersTo(staged.Commit, message))(m.world); !refers {
		return answer{}, false
	}
	return m.carol.post(mlsapi.NSIDSubmitCommit, submit(m.c, staged)), true
}

// byValue submits by's own commit of the proposal.
func (m *whoMay) byValue(by *phone, proposal []byte) answer {
	m.t.Helper()
	return by.post(mlsapi.NSIDSubmitCommit, submit(m.c, must(mlsclient.StageRaw(by.group, proposal))(m.world)))
}

// Who may do what, in each of three ways: by a proposal alone, by a proposal that another member's
// commit refers to, and in a commit of one's own (T13, T15). The three agree, because the author
// decides, except where the way itself is the reason.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outsider := w.user()
	package_, _ := outsider.KeyPackage(t)
	const ok, cannot = "", "-" // cannot: MLS does not allow the way, or the library does not make such a commit
	for name, c := range map[string]struct {
		byAdmin                     bool
		proposal                    func(m *whoMay) []byte
		alone, byReference, byValue string
		says                        string // the refusal names this
	}{
		"a member removes another": {false, func(m *whoMay) []byte { return mlstest.Remove(m.dave.group.Own()) },
			mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, "only the convo's admins"},
		"a member removes the creator": {false, func(m *whoMay) []byte { return mlstest.Remove(m.alice.group.Own()) },
			mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, "only the convo's admins"},
		"the creator removes a member": {true, func(m *whoMay) []byte { return mlstest.Remove(m.dave.group.Own()) },
			ok, ok, ok, ""},
		"a member removes its own device": {false, func(m *whoMay) []byte { return mlstest.Remove(m.bob.group.Own()) },
			ok, ok, cannot, ""},
		"a member removes nobody's leaf": {false, func(*whoMay) []byte { return mlstest.Remove(77) },
			mlsapi.ErrInvalidMessage, cannot, cannot, "a blank leaf"},
		"a member adds an outsider": {false, func(*whoMay) []byte { return mlstest.Add(package_) },
			mlsapi.ErrInvalidMessage, mlsapi.ErrInvalidCommit, mlsapi.ErrInvalidCommit, "dd"},
		"the creator adds an outsider": {true, func(*whoMay) []byte { return mlstest.Add(package_) },
			mlsapi.ErrInvalidMessage, mlsapi.ErrInvalidCommit, mlsapi.ErrInvalidCommit, "dd"},
		"a member replaces the extensions": {false, func(*whoMay) []byte { return mlstest.ContextExtensions(nil) },
			mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, "replaces the extensions"},
		"a member lists an external sender": {false,
			func(*whoMay) []byte { return mlstest.ContextExtensions(mlstest.ExternalSenders(outsider.Device)) },
			mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, mlsapi.ErrNotPermitted, "replaces the extensions"},
		"the creator replaces the extensions": {true, func(*whoMay) []byte { return mlstest.ContextExtensions(nil) },
			ok, ok, ok, ""},
		"a member reinitialises": {false, func(*whoMay) []byte { return mlstest.ReInit(newGroup(t)) },
			mlsapi.ErrNotPermitted, cannot, cannot, "reinitialises"}, // TestReInitCloses has the other ways
		"a member brings a PSK": {false, func(*whoMay) []byte { return mlstest.PSK("nobody has it") },
			ok, cannot, cannot, ""},
		"a member leaves, by a type that others do not list": {false, func(*whoMay) []byte { return mlstest.SelfRemove() },
			mlsapi.ErrInvalidMessage, cannot, cannot, "does not list proposal type 10"},
		"a member sends a type that others do not list": {false, func(*whoMay) []byte { return mlstest.Custom("x") },
			mlsapi.ErrInvalidMessage, cannot, cannot, "does not list proposal type"},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(way, want string, a answer) {
				t.Helper()
				a.t = t
				status := http.StatusBadRequest
				switch want {
				case ok:
					a.ok()
					return
				case mlsapi.ErrNotPermitted:
					status = http.StatusForbidden
				}
				if message := a.fails(status, want); !strings.Contains(message, c.says) {
					t.Errorf("%s: the message is %q, without %q", way, message, c.says)
				}
			}
			world := *w
			world.t = t
			start := func() (*whoMay, *phone, []byte) {
				m := newWhoMay(t, &world)
				by := m.bob
				if c.byAdmin {
					by = m.alice
				}
				return m, by, c.proposal(m)
			}
			m, by, proposal := start()
			_, a := m.alone(by, proposal)
			check("alone", c.alone, a)
			if c.byReference != cannot {
				a, made := m.byReference(by, proposal)
				if !made {
					t.Fatal("by reference: the library makes no such commit")
				}
				check("by reference", c.byReference, a)
			}
			if c.byValue != cannot {
				m, by, proposal := start()
				check("by value", c.byValue, m.byValue(by, proposal))
			}
		})
	}
}

// T15: carol commits what the creator proposes, and a person without a device is off the roster.
func TestCarolCommits(t *testing.T) {
	t.Parallel()
	m := newWhoMay(t, newWorld(t))
	for _, proposal := range []struct {
		by   *phone
		leaf uint32
	}{{m.alice, m.dave.group.Own()}, {m.bob, m.bob.group.Own()}} {
		message, a := m.alone(proposal.by, mlstest.Remove(proposal.leaf))
		a.ok()
		for _, p := range []*phone{m.alice, m.carol} {
			if _, err := p.group.Process(message); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.carol.post(mlsapi.NSIDSubmitCommit, submit(m.c, must(m.carol.group.StageUpdate())(m.world))).ok()
	follow(m.c, m.alice, m.carol)
	view := m.alice.convo(m.c)
	if len(view.Members) != 2 || *view.CommitLevel != "verified" {
		t.Errorf("%d members, level %s", len(view.Members), *view.CommitLevel)
	}
	for did, change := range map[string]string{m.bob.did().String(): "left", m.dave.did().String(): "removed"} {
		if n := m.count(`
			SELECT count(*) FROM (SELECT kind, convo_id, did, detail FROM outbox UNION ALL SELECT kind, convo_id, did, detail
				FROM events) e
			WHERE kind = 4 AND convo_id = $1 AND did = $2 AND detail ->> 'change' = $3`, m.c.id, did, change); n != 1 {
			t.Errorf("%d events say that %s %s", n, did, change)
		}
	}
	m.bob.post(mlsapi.NSIDSendMessage, m.bob.message(m.c, "after")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	m.carol.post(mlsapi.NSIDSendMessage, m.carol.message(m.c, "after")).ok()
}

// T15: the creator removes several people in one commit, and swaps them for others, whether the
// commit can be read or not. Nobody else does.
func TestSwap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, hidden := range []bool{false, true} {
		m := newWhoMay(t, w)
		eve := w.phone()
		swap := func(by, eve *phone) answer {
			by.mls.HideHandshakes(hidden)
			gone := []uint32{m.carol.group.Own(), m.dave.group.Own()}
			staged := must(by.group.Stage(mlsclient.Change{Add: by.fetch(eve), Remove: gone}))(w)
			return by.post(mlsapi.NSIDAddMembers, by.addMembers(m.c, staged, eve))
		}
		swap(m.bob, w.phone()).fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
		m.bob.group.Discard()
		swap(m.alice, eve).ok()
		follow(m.c, m.alice, m.bob)
		eve.join(m.c)
		if n := len(m.alice.convo(m.c).Members); n != 3 {
			t.Errorf("hidden %v: %d members", hidden, n)
		}
		m.carol.post(mlsapi.NSIDSendMessage, m.carol.message(m.c, "after")).fails(http.StatusForbidden, mlsapi.ErrNotMember)
		// Both of the others, by the method without a target.
		staged := must(m.alice.group.StageRemove(m.bob.did().String(), eve.did().String()))(w)
		m.alice.post(mlsapi.NSIDSubmitCommit, submit(m.c, staged)).ok()
		if n := len(m.alice.convo(m.c).Members); n != 1 {
			t.Errorf("hidden %v: %d members", hidden, n)
		}
	}
}

// T13: a refusal of a commit says whose proposal is at fault, so that the committer can leave it out.
func TestRefusalNamesTheAuthor(t *testing.T) {
	t.Parallel()
	m := newWhoMay(t, newWorld(t))
	a, made := m.byReference(m.bob, mlstest.Remove(m.dave.group.Own()))
	if !made {
		t.Fatal("the library makes no such commit")
	}
	message := a.fails(http.StatusForbidden, mlsapi.ErrNotPermitted)
	for _, part := range []string{
		m.dave.did().String(), "as " + m.bob.did().String() + " has proposed", "leave that proposal out",
	} {
		if !strings.Contains(message, part) {
			t.Errorf("%q is not in %q", part, message)
		}
	}
	// The creator's own removal of bob is not in the way.
	staged := must(m.alice.group.StageRemove(m.bob.did().String()))(m.world)
	m.alice.post(mlsapi.NSIDSubmitCommit, submit(m.c, staged)).ok()
}
