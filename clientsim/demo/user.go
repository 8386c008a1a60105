package demo

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// demoUser is one person of the tour, with one device and one convo at a time. Its state is in
// memory only.
type demoUser struct {
	name    string
	account *xrpc.Account
	device  mlsclient.Device
	group   mlsclient.Group   // the one made or joined last, or nil
	texts   map[string]string // texts by digest of the ciphertext, because a ciphertext decrypts only once
}

var errNoGroup = errors.New("no group yet: make one or join one first")

func (t *Tour) token(p *demoUser, r *http.Request, _ []byte) (string, error) {
	method, err := syntax.ParseNSID("blue.catbird.mls." + r.FormValue("method"))
	if err != nil {
		return "", err
	}
	return p.account.Token(t.audience, method)
}

func (p *demoUser) keyPackage(*http.Request, []byte) (string, error) {
	kp, err := p.device.KeyPackage()
	return base64.RawURLEncoding.EncodeToString(kp.Message), err
}

func (p *demoUser) newGroup(*http.Request, []byte) (string, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return "", err
	}
	group, err := p.device.Create(id)
	if err != nil {
		return "", err
	}
	p.group = group
	return hex.EncodeToString(id), nil
}

// add stages the commit that adds someone. It is merged when the server has accepted it: see
// accepted.
func (p *demoUser) add(r *http.Request, _ []byte) (string, error) {
	if p.group == nil {
		return "", errNoGroup
	}
	did, err := syntax.ParseDID(r.FormValue("did"))
	if err != nil {
		return "", err
	}
	kp, err := base64.RawURLEncoding.DecodeString(r.FormValue("keypackage"))
	if err != nil {
		return "", fmt.Errorf("keypackage: %w", err)
	}
	staged, err := p.group.StageAdd(kp)
	if err != nil {
		return "", err
	}
	return string(xrpc.AddCall(r.FormValue("convo"), []syntax.DID{did}, staged, xrpc.NewKey()).Body), nil
}

func (p *demoUser) accepted(_ *http.Request, answer []byte) (string, error) {
	if p.group == nil || p.group.Pending() == nil {
		return "", errors.New("no commit waits for an answer")
	}
	out, err := mlsapi.DecodeAddMembersOutput(answer)
	if err != nil {
		p.group.Discard() // another commit won, or none did
		return "", refused(answer, err)
	}
	if staged := p.group.Pending(); out.NewEpoch != int64(staged.Epoch) {
		return "", fmt.Errorf("the server is in epoch %d, and this commit creates %d", out.NewEpoch, staged.Epoch)
	}
	if err := p.group.Confirm(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s is in epoch %d", p.name, p.group.Epoch()), nil
}

func (p *demoUser) join(_ *http.Request, answer []byte) (string, error) {
	out, err := mlsapi.DecodeGetWelcomeOutput(answer)
	if err != nil {
		return "", refused(answer, err)
	}
	group, err := p.device.Join(out.Welcome)
	if err != nil {
		return "", err
	}
	p.group = group
	return fmt.Sprintf("%s is in epoch %d", p.name, group.Epoch()), nil
}

func (p *demoUser) message(r *http.Request, _ []byte) (string, error) {
	if p.group == nil {
		return "", errNoGroup
	}
	text := r.FormValue("text")
	ciphertext, err := p.group.Encrypt([]byte(text))
	if err != nil {
		return "", err
	}
	p.texts[textKey(ciphertext)] = text
	return string(lexcodec.Bytes(ciphertext).AppendJSON(nil)), nil
}

// read decrypts a page of messages, one line each.
func (t *Tour) read(p *demoUser, _ *http.Request, answer []byte) (string, error) {
	if p.group == nil {
		return "", errNoGroup
	}
	page, err := mlsapi.DecodeGetMessagesOutput(answer)
	if err != nil {
		return "", refused(answer, err)
	}
	lines := []string{}
	for i := range page.Messages {
		m := &page.Messages[i]
		if xrpc.IsCommit(m) {
			lines = append(lines, "(a commit)")
			continue
		}
		text, ok := p.texts[textKey(m.Ciphertext)]
		if !ok {
			got, err := p.group.Process(m.Ciphertext)
			if err != nil {
				return "", fmt.Errorf("seq %d: %w", m.Seq, err)
			}
			text = string(got.Plaintext)
			p.texts[textKey(m.Ciphertext)] = text
		}
		lines = append(lines, t.nameOf(m.Sender)+": "+text)
	}
	return strings.Join(lines, "\n"), nil
}

func (t *Tour) nameOf(did syntax.DID) string {
	for name, p := range t.people {
		if p.account.DID == did {
			return name
		}
	}
	return did.String()
}

func textKey(ciphertext []byte) string { return fmt.Sprintf("%x", sha256.Sum256(ciphertext)) }

// refused returns an error with the server's own error, if the answer is one.
func refused(answer []byte, err error) error {
	var named struct{ Error, Message string }
	if json.Unmarshal(answer, &named) == nil && named.Error != "" {
		return fmt.Errorf("the server refused: %s: %s", named.Error, named.Message)
	}
	return err
}
