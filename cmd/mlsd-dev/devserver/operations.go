package devserver

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Operation is the body of POST /dev/devices/{id}/{operation}. Each operation accepts the fields
// that it needs, and refuses other fields.
type Operation struct {
	ConvoID string       `json:"convoId"`
	DIDs    []syntax.DID `json:"dids"` // members to add or remove
	// Text or Data is a plaintext. Data is base64.
	Text *string `json:"text"`
	Data []byte  `json:"data"`
	// Count is how many KeyPackages to publish.
	Count int `json:"count"`
	// After is the seq after which to show messages.
	After int64 `json:"after"`
	// Welcome is an answer of getWelcome.
	Welcome json.RawMessage `json:"welcome"`
}

// Place is where a device is in a convo after an operation.
type Place struct {
	ConvoID string `json:"convoId"`
	Epoch   uint64 `json:"epoch"`
}

// Joined is the answer of join.
type Joined struct {
	Joined []Place `json:"joined"`
}

// Published is the answer of publish.
type Published struct {
	Published int `json:"published"`
}

// SentMessage is the answer of send.
type SentMessage struct {
	Place
	MessageID string `json:"messageId"`
	Seq       int64  `json:"seq"`
}

// Encrypted is the answer of encrypt: the input of sendMessage.
type Encrypted struct {
	Place
	Ciphertext lexcodec.Bytes `json:"ciphertext"`
}

// ReadMessages is the answer of read.
type ReadMessages struct {
	Place
	Members  []string      `json:"members"` // the identity of each leaf
	Messages []ReadMessage `json:"messages"`
}

// ReadMessage is an entry of the log.
type ReadMessage struct {
	Seq    int64      `json:"seq"`
	ID     string     `json:"id"`
	Sender syntax.DID `json:"sender"` // from the MLS message
	Commit bool       `json:"commit,omitempty"`
	Own    bool       `json:"own,omitempty"`    // sent by this device
	Before bool       `json:"before,omitempty"` // of an epoch before the device joined, for which it has no key
	Text   string     `json:"text,omitempty"`
	Data   []byte     `json:"data,omitempty"` // set instead of Text if the plaintext is not UTF-8
}

// operation is one thing that a device can do. fields are the fields of Operation that it accepts.
// Fields without a question mark are required.
type operation struct {
	fields string
	do     func(ctx context.Context, p *client.Phone, in Operation) any
}

// operations are all operations, by name.
var operations = map[string]operation{
	"publish": {"count", publish},
	"create":  {"dids?", create},
	"invite":  {"convoId dids", invite},
	"join":    {"convoId?", join},
	"open":    {"welcome", open},
	"send":    {"convoId text|data", send},
	"encrypt": {"convoId text|data", encrypt},
	"read":    {"convoId after?", readLog},
	"commit":  {"convoId", commit},
	"remove":  {"convoId dids?", remove},
	"leave":   {"convoId", leave},
	"accept":  {"convoId", accept},
	"rejoin":  {"convoId", rejoin},

	"draftPublish": {"", draftPublish},
	"draftCreate":  {"dids?", draftCreate},
	"draftInvite":  {"convoId dids", draftInvite},
	"draftCommit":  {"convoId", draftCommit},
	"draftRejoin":  {"convoId", draftRejoin},
}

// operate makes a device execute an operation.
func (s *Server) operate(r *http.Request) (result any) {
	op, ok := operations[r.PathValue("operation")]
	if !ok {
		Check(&refusal{http.StatusNotFound, "NotFound",
			"a device can " + strings.Join(slices.Sorted(maps.Keys(operations)), ", ")})
	}
	one, in := Must(s.devices.find(r.PathValue("id"))), read[Operation](r)
	Check(in.check(op.fields))
	one.mu.Lock()
	defer one.mu.Unlock()
	// If the client hangs up, the device must still finish a commit.
	ctx := context.WithoutCancel(r.Context())
	Check(refusalOf(Attempt(func() { result = op.do(ctx, one.phone, in) })))
	return result
}

// check refuses an operation with a missing or an unexpected field.
func (in *Operation) check(fields string) error {
	given := map[string]bool{
		"convoId": in.ConvoID != "", "dids": len(in.DIDs) > 0, "text": in.Text != nil, "data": in.Data != nil,
		"count": in.Count != 0, "after": in.After != 0, "welcome": in.Welcome != nil,
	}
	for _, field := range strings.Fields(fields) {
		name, optional := strings.CutSuffix(field, "?")
		present := 0
		for _, alternative := range strings.Split(name, "|") {
			if given[alternative] {
				present++
			}
			delete(given, alternative)
		}
		if present > 1 || present == 0 && !optional {
			return badRequest("want one %s", strings.ReplaceAll(name, "|", " or "))
		}
	}
	for name, there := range given {
		if there {
			return badRequest("%s does not belong here", name)
		}
	}
	if in.Count < 0 || in.After < 0 {
		return badRequest("a number is negative")
	}
	return nil
}

// plaintext returns the plaintext of a message.
func (in *Operation) plaintext() string {
	if in.Text != nil {
		return *in.Text
	}
	return string(in.Data)
}

// refusalOf returns the reason, for the client, why a device could not do something. It passes on
// the answer of the service.
func refusalOf(err error) error {
	var call *xrpc.CallError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &call):
		return &refusal{call.Status, call.Name, err.Error()}
	}
	return &refusal{http.StatusConflict, "DeviceFailed", err.Error()}
}

// placeOf returns where the device is in a convo, unless the operation failed.
func placeOf(p *client.Phone, convo string, err error) Place {
	Check(err)
	return Place{ConvoID: convo, Epoch: Must(p.Group(convo)).Epoch()}
}

func publish(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.PublishMany(ctx, in.Count, false))
	return Published{in.Count}
}

func create(ctx context.Context, p *client.Phone, in Operation) any {
	convo, err := p.Create(ctx, in.DIDs...)
	return placeOf(p, convo, err)
}

func invite(ctx context.Context, p *client.Phone, in Operation) any {
	return placeOf(p, in.ConvoID, p.Add(ctx, in.ConvoID, in.DIDs...))
}

// join joins a convo by its Welcome, or all convos of the account that have a Welcome for the
// device.
func join(ctx context.Context, p *client.Phone, in Operation) any {
	convos := []string{in.ConvoID}
	if in.ConvoID == "" {
		convos = waiting(ctx, p)
	}
	joined := Joined{Joined: []Place{}}
	for _, convo := range convos {
		err := p.Join(ctx, convo)
		if in.ConvoID == "" && xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound {
			continue // the Welcome is for another device of the account
		}
		joined.Joined = append(joined.Joined, placeOf(p, convo, err))
	}
	return joined
}

// open joins by a Welcome that the caller has fetched and will confirm.
func open(_ context.Context, p *client.Phone, in Operation) any {
	out, err := xrpc.Decode[mlsapi.GetWelcomeOutput](in.Welcome)
	if err != nil || out.KeyPackageRef == nil {
		Check(badRequest("welcome is no answer of getWelcome: %v", err))
	}
	Check(p.SaveWelcome(out))
	return placeOf(p, out.ConvoID, p.JoinSaved(out.ConvoID))
}

// waiting returns the account's convos that the device has not joined.
func waiting(ctx context.Context, p *client.Phone) (convos []string) {
	const page = 100
	for cursor := ""; ; {
		out := Must(xrpc.Ask[mlsapi.GetConvosOutput](ctx, p.Net, p.Account, xrpc.ConvosCall(cursor, page)))
		for i := range out.Conversations {
			if id := out.Conversations[i].ID; p.Threads[id] == nil {
				convos = append(convos, id)
			}
		}
		if out.Cursor == nil {
			return convos
		}
		cursor = *out.Cursor
	}
}

func send(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.Sync(ctx, in.ConvoID))
	Check(p.Send(ctx, in.ConvoID, in.plaintext()))
	Check(p.Sync(ctx, in.ConvoID))
	for _, item := range slices.Backward(Must(p.Inbox(in.ConvoID))) {
		if item.Own && !item.Commit {
			return SentMessage{Place: placeOf(p, in.ConvoID, nil), MessageID: item.ID, Seq: item.Seq}
		}
	}
	Fail("the log does not have the message that was sent")
	return nil
}

// encrypt makes a message that the caller will send. The device can read the message as its own.
func encrypt(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.Sync(ctx, in.ConvoID))
	draft := Must(p.DraftSend(in.ConvoID, in.plaintext()))
	message := Must(mlsapi.DecodeSendMessageInput(draft.Call.Body))
	Check(p.Save(map[string][]byte{client.OutboxPrefix + draft.Call.Key: nil}))
	return Encrypted{Place{in.ConvoID, draft.Epoch}, message.Ciphertext}
}

func readLog(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.Sync(ctx, in.ConvoID))
	group := Must(p.Group(in.ConvoID))
	out := ReadMessages{Place: Place{in.ConvoID, group.Epoch()}, Members: group.Members(), Messages: []ReadMessage{}}
	for _, item := range Must(p.Inbox(in.ConvoID)) {
		if item.Seq <= in.After {
			continue
		}
		m := ReadMessage{Seq: item.Seq, ID: item.ID, Sender: item.Sender, Commit: item.Commit, Own: item.Own,
			Before: item.Past, Text: item.Text}
		if item.Data != nil {
			m.Text, m.Data = "", item.Data
		}
		out.Messages = append(out.Messages, m)
	}
	return out
}

// commit rotates the device's keys.
func commit(ctx context.Context, p *client.Phone, in Operation) any {
	return placeOf(p, in.ConvoID, p.Rotate(ctx, in.ConvoID))
}

// remove removes members, or the leaves of people who have left.
func remove(ctx context.Context, p *client.Phone, in Operation) any {
	if len(in.DIDs) == 0 {
		return placeOf(p, in.ConvoID, p.CommitRemovals(ctx, in.ConvoID))
	}
	for _, did := range in.DIDs {
		Check(p.Remove(ctx, in.ConvoID, did))
	}
	return placeOf(p, in.ConvoID, nil)
}

func leave(ctx context.Context, p *client.Phone, in Operation) any {
	return placeOf(p, in.ConvoID, p.Leave(ctx, in.ConvoID))
}

// accept accepts a convo that is a request, because the account does not know its inviter.
func accept(ctx context.Context, p *client.Phone, in Operation) any {
	Must(p.Net.Do(ctx, p.Account, xrpc.AcceptCall(in.ConvoID, xrpc.NewKey())))
	return Place{ConvoID: in.ConvoID}
}

// rejoin enters a convo of the account by an external commit: as a further device, or after the
// device has lost its state.
func rejoin(ctx context.Context, p *client.Phone, in Operation) any {
	return placeOf(p, in.ConvoID, p.Rejoin(ctx, in.ConvoID))
}

// Draft is the answer of operations that make a request and do not send it.
type Draft struct {
	Method syntax.NSID     `json:"method"`
	Input  json.RawMessage `json:"input"`
}

// drafted returns a draft that the caller will send. The device does not send it.
func drafted(p *client.Phone, d *client.Draft) any {
	Check(p.Save(map[string][]byte{client.OutboxPrefix + d.Call.Key: nil}))
	return Draft{d.Call.Method, d.Call.Body}
}

// forgotten is drafted for a group that the device does not enter, because it does not see the
// answer.
func forgotten(p *client.Phone, d *client.Draft) any {
	Check(p.Drop(d))
	return Draft{d.Call.Method, d.Call.Body}
}

// draftPublish makes a KeyPackage with which the device can join.
func draftPublish(_ context.Context, p *client.Phone, _ Operation) any {
	return drafted(p, Must(p.DraftPublish()))
}

func draftCreate(ctx context.Context, p *client.Phone, in Operation) any {
	var packages [][]byte
	if len(in.DIDs) > 0 {
		packages = Must(p.Claim(ctx, "", in.DIDs))
	}
	return forgotten(p, Must(p.DraftCreate(in.DIDs, packages)))
}

// draftInvite stages a commit. The device applies the commit when it reads it in the log.
func draftInvite(ctx context.Context, p *client.Phone, in Operation) any {
	packages := Must(p.Claim(ctx, in.ConvoID, in.DIDs))
	Check(p.Sync(ctx, in.ConvoID))
	return drafted(p, Must(p.DraftAdd(in.ConvoID, in.DIDs, packages)))
}

// draftCommit is draftInvite for a rotation of the device's keys.
func draftCommit(ctx context.Context, p *client.Phone, in Operation) any {
	Check(p.Sync(ctx, in.ConvoID))
	return drafted(p, Must(p.DraftCommit(in.ConvoID, mlsclient.Change{})))
}

func draftRejoin(ctx context.Context, p *client.Phone, in Operation) any {
	info := Must(p.GroupInfo(ctx, in.ConvoID))
	return forgotten(p, Must(p.DraftRejoin(in.ConvoID, info)))
}
