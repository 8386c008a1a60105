package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
)

// headsEvery is how many entries a phone reads before it asks for a head.
const headsEvery = 10

// headText begins the plaintext of a message that carries a head to the other members.
const headText = "log head\n"

// logSource reads a log's heads and proofs from the server, with the account of a phone.
type logSource struct{ p *Phone }

func (s logSource) Head(ctx context.Context, convo string, senders []string) (a verifier.Answer, err error) {
	defer CatchIn(&err, "getLogHead")
	out := Must(xrpc.Ask[mlsapi.GetLogHeadOutput](ctx, s.p.Net, s.p.Account, xrpc.LogHeadCall(convo, senders...)))
	a.Head, a.Keys = out.Head, out.Keys
	for _, one := range out.Senders {
		tag := Must(hashOf(one.Tag))
		a.Senders = append(a.Senders, verifier.Sender{DID: one.DID.String(), Salt: one.Salt, Tag: tag})
	}
	return a, nil
}

func (s logSource) Inclusion(ctx context.Context, convo string, seq, size int64) (leaf verifier.Hash,
	proof []verifier.Hash, err error) {
	out, proof, err := s.proof(ctx, xrpc.InclusionCall(convo, seq, size))
	if err == nil {
		leaf, err = hashOf(out.Leaf)
	}
	return leaf, proof, err
}

func (s logSource) Consistency(ctx context.Context, convo string, from, size int64) ([]verifier.Hash, error) {
	_, proof, err := s.proof(ctx, xrpc.ConsistencyCall(convo, from, size))
	return proof, err
}

func (s logSource) proof(ctx context.Context, call xrpc.Call) (out *mlsapi.GetLogProofOutput, proof []verifier.Hash,
	err error) {
	defer Catch(&err)
	answer := Must(s.p.Net.Do(ctx, s.p.Account, call))
	if out, err = xrpc.Decode[mlsapi.GetLogProofOutput](answer.Body); err != nil {
		return nil, nil, fmt.Errorf("getLogProof: %w", err)
	}
	for _, h := range out.Hashes {
		one, err := hashOf(h)
		Check(errs.Wrap(err, "getLogProof"))
		proof = append(proof, one)
	}
	return out, proof, nil
}

func hashOf(b []byte) (h verifier.Hash, err error) {
	if len(b) != len(h) {
		return h, fmt.Errorf("a hash has %d bytes, not %d", len(h), len(b))
	}
	return verifier.Hash(b), nil
}

// seen converts a log entry into the form that the verifier takes.
func seen(view *mlsapi.MessageView) verifier.Seen {
	m := verifier.Seen{
		Seq: view.Seq, Kind: verifier.Application, Epoch: view.Epoch, At: view.CreatedAt.Time,
		Body:   verifier.BodyHash(view.Ciphertext),
		Sender: view.Sender.String(),
	}
	if view.MessageType != nil {
		switch *view.MessageType {
		case mlsapi.MessageViewMessageTypeProposal:
			m.Kind = verifier.Proposal
		case mlsapi.MessageViewMessageTypeCommit:
			m.Kind = verifier.Commit
		case mlsapi.MessageViewMessageTypeReset:
			m.Kind = verifier.Reset
		}
	}
	return m
}

// seenName names the file of an entry that the phone has read, but not yet shown to the verifier.
func seenName(convo string, seq int64) string {
	return fmt.Sprintf("%s%s/%012d", seenPrefix, convo, seq)
}

// VerifierOf returns the stored verifier of a convo's log.
func (p *Phone) VerifierOf(convo string) (*verifier.Verifier, error) {
	if data, ok := p.Disk.Read(proofPrefix + convo); ok {
		return verifier.Restore(data, logSource{p}, nil)
	}
	return p.newVerifier(convo), nil
}

func (p *Phone) newVerifier(convo string) *verifier.Verifier {
	service, _, _ := strings.Cut(p.Net.Audience, "#")
	return verifier.New(service, convo, logSource{p}, nil)
}

func (p *Phone) saveVerifier(convo string, v *verifier.Verifier, changes map[string][]byte) (err error) {
	defer Catch(&err)
	data := Must(v.Save())
	if changes == nil {
		changes = map[string][]byte{}
	}
	changes[proofPrefix+convo] = data
	p.Disk.Write(changes)
	return nil
}

// verify shows the verifier the entries of a convo that the phone has read since the last time. It
// returns *verifier.Lie, *verifier.OtherKey, *verifier.OtherSender, and errors of loading and
// saving the verifier. It drops any other error of the verifier: the next Sync tries again.
func (p *Phone) verify(ctx context.Context, thread *Thread) error {
	if !p.Verifies {
		return nil
	}
	v, err := p.VerifierOf(thread.ConvoID)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	changes := map[string][]byte{}
	err = p.showAll(ctx, v, thread, changes)
	if err == nil {
		p.stats.Verified.Add(1)
	}
	return p.storeVerified(ctx, v, thread, changes, err)
}

// storeVerified stores the verifier. err is the verifier's error: if err asks to read the log
// again, storeVerified does that first. storeVerified returns the same errors as verify.
func (p *Phone) storeVerified(ctx context.Context, v *verifier.Verifier, thread *Thread, changes map[string][]byte,
	err error) error {
	if errors.Is(err, verifier.ErrReadAgain) {
		err = p.readAgain(ctx, v, thread)
	}
	if saving := p.saveVerifier(thread.ConvoID, v, changes); saving != nil {
		return saving
	}
	var back *verifier.WentBack
	if errors.As(err, &back) {
		p.stats.WentBack.Add(1)
	}
	if errors.As(err, new(*verifier.Lie)) || errors.As(err, new(*verifier.OtherKey)) ||
		errors.As(err, new(*verifier.OtherSender)) {
		return fmt.Errorf("%s: the log of %s: %w", p.Name, thread.ConvoID, err)
	}
	return nil
}

// showAll shows the verifier the waiting entries, up to the thread's cursor. Now and then it asks
// for a head.
func (p *Phone) showAll(ctx context.Context, v *verifier.Verifier, thread *Thread,
	changes map[string][]byte) (err error) {
	defer Catch(&err)
	shown := 0
	for _, name := range p.Disk.List(seenPrefix + thread.ConvoID + "/") {
		seq := Must(strconv.ParseInt(name[strings.LastIndexByte(name, '/')+1:], 10, 64))
		if seq > thread.Cursor {
			break
		}
		data, _ := p.Disk.Read(name)
		var m verifier.Seen
		Check(json.Unmarshal(data, &m))
		if v.Size() > 0 && seq > v.Size()+1 { // a device that left and came back has not read the entries between
			Check(v.Skip(ctx, seq-1))
		}
		Check(v.Entry(ctx, m))
		changes[name] = nil
		shown++
	}
	if shown == 0 || v.Size()%headsEvery != 0 && v.Newest() != "" {
		return nil
	}
	Check(v.Refresh(ctx))
	return p.compareHeads(ctx, v, thread.ConvoID)
}

// readAgain reads the entries behind the size of v again from the server, as v has asked.
func (p *Phone) readAgain(ctx context.Context, v *verifier.Verifier, thread *Thread) (err error) {
	defer Catch(&err)
	for {
		page := Must(xrpc.Ask[mlsapi.GetMessagesOutput](ctx, p.Net, p.Account,
			xrpc.MessagesCall(thread.ConvoID, "all", max(v.Size(), thread.First-1), pageSize)))
		for i := range page.Messages {
			Check(v.Entry(ctx, seen(&page.Messages[i])))
		}
		if page.Cursor == nil {
			return v.Refresh(ctx)
		}
	}
}

// compareHeads compares the newest heads of the other phones with this phone's head, and gives this
// head to the other phones through the model. Apps send heads in encrypted messages: see SendHead.
func (p *Phone) compareHeads(ctx context.Context, v *verifier.Verifier, convo string) error {
	for name, head := range p.Model.ExchangeHeads(convo, p.Name, v.Message()) {
		if err := v.Head(ctx, head, name); err != nil { // all phones are honest
			return err
		}
	}
	return nil
}

// SendHead sends the newest head that the phone has checked to the other members, inside an
// encrypted message.
func (p *Phone) SendHead(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	v := Must(p.VerifierOf(convo))
	return p.Send(ctx, convo, headText+v.Message())
}

// CompareReceived compares the heads in the messages that the phone has read in a convo, and
// returns the number of these heads. Error: *verifier.Lie.
func (p *Phone) CompareReceived(ctx context.Context, convo string) (n int, err error) {
	defer Catch(&err)
	v := Must(p.VerifierOf(convo))
	items := Must(p.Inbox(convo))
	for _, item := range items {
		if head, ok := strings.CutPrefix(item.Text, headText); ok && !item.Own {
			if err = v.Head(ctx, head, item.Sender.String()); err != nil {
				break
			}
			n++
		}
	}
	return n, errors.Join(err, p.saveVerifier(convo, v, nil))
}

// verifySent tells the verifier what the server has acknowledged.
func (p *Phone) verifySent(ctx context.Context, convo string, m verifier.Seen) (err error) {
	defer Catch(&err)
	if !p.Verifies {
		return nil
	}
	v := Must(p.VerifierOf(convo))
	err = v.Sent(ctx, m)
	if thread, ok := p.Threads[convo]; ok {
		return p.storeVerified(ctx, v, thread, nil, err)
	}
	return p.saveVerifier(convo, v, nil)
}
