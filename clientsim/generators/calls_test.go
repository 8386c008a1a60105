package generators_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/lexicons"
)

// call is a call that a generated client makes, or an event that the client validates.
type call struct {
	NSID string `json:"nsid"`
	// Kind is "query", "procedure" or "event".
	Kind   string          `json:"kind"`
	Params map[string]any  `json:"params,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	Token  string          `json:"token,omitempty"`
	// Event is the name of the event's definition. Body is the event.
	Event string `json:"event,omitempty"`
}

// tokenLife is as long as a slow program takes.
const tokenLife = 10 * time.Minute

// caller makes the calls of one world.
type caller struct {
	t     *testing.T
	w     *testbed.World
	base  string
	calls []call
}

// makeCalls makes a world and one call of each method that must succeed in it, in this order.
func makeCalls(t *testing.T, to testbed.Target, serial uint64) []call {
	t.Helper()
	c := &caller{t: t, w: testbed.NewWorld(to, testbed.Options{Seed: serial}, 1, func(string) {}), base: to.Base}
	ctx := t.Context()
	phones, convo, err := c.w.Convo(ctx, 3)
	c.must(err)
	alice, bob, carol := phones[0], phones[1], phones[2]
	others, err := c.w.Phones(ctx, 4)
	c.must(err)
	dave, erin, frank, grace := others[0], others[1], others[2], others[3]
	c.must(alice.Send(ctx, convo, "hello"))
	quiet := c.convo(bob, carol)  // for a commit
	rejoin := c.convo(carol, bob) // for an external commit
	c.must(bob.Join(ctx, rejoin))
	invited := c.convo(alice, frank) // for a Welcome
	request := c.convo(bob, grace)

	c.add(alice, xrpc.ConvoCall(convo))
	c.add(alice, xrpc.ConvosCall("", 10))
	c.add(grace, query(mlsapi.NSIDGetConvos, url.Values{"requests": {"true"}, "limit": {"10"}}))
	c.add(grace, xrpc.AcceptCall(request, xrpc.NewKey()))
	c.add(alice, xrpc.RoleCall(convo, bob.Account.DID, true, xrpc.NewKey()))
	c.add(alice, xrpc.RoleCall(convo, bob.Account.DID, false, xrpc.NewKey()))
	c.add(alice, xrpc.UpdateConvoCall(convo, "Family", xrpc.NewKey()))
	c.add(frank, xrpc.BlockCall("did:plc:mallory", xrpc.NewKey()))
	c.add(frank, xrpc.BlocksCall())
	c.add(frank, xrpc.UnblockCall("did:plc:mallory", xrpc.NewKey()))
	c.add(frank, xrpc.SetPolicyCall(mlsapi.SetInvitationPolicyInputPolicyShared, xrpc.NewKey()))
	c.add(frank, xrpc.PolicyCall())
	c.add(alice, xrpc.Procedure(mlsapi.NSIDSetCursorPolicy, "", "",
		&mlsapi.SetCursorPolicyInput{ShareCursors: mlsapi.SetCursorPolicyInputShareCursorsMembers}))
	c.add(alice, query(mlsapi.NSIDGetCursorPolicy, url.Values{}))
	c.add(alice, query(mlsapi.NSIDGetCursors, url.Values{"convoId": {convo}}))
	group, err := alice.Group(convo)
	c.must(err)
	typing, err := group.Encrypt([]byte("typing"))
	c.must(err)
	c.add(alice, xrpc.Procedure(mlsapi.NSIDSendSignal, convo, "",
		&mlsapi.SendSignalInput{ConvoID: convo, Payload: typing}))
	c.add(bob, query(mlsapi.NSIDGetPushKey, url.Values{}))
	c.add(bob, query(mlsapi.NSIDGetReportKey, url.Values{}))
	c.add(bob, report(convo, c.reportKey(bob)))
	c.add(alice, xrpc.EpochCall(convo))
	c.add(alice, query(mlsapi.NSIDGetDeliveryService, url.Values{"did": {bob.Account.DID.String()}}))
	c.add(alice, xrpc.GroupInfoCall(convo))
	c.add(alice, xrpc.MessagesCall(convo, "all", 0, 10))
	c.add(alice, xrpc.LogHeadCall(convo))
	c.add(alice, xrpc.InclusionCall(convo, 1, 1))
	c.add(alice, xrpc.CommitsCall(convo, 1))
	c.add(alice, xrpc.CursorCall(convo, 1))
	c.add(alice, c.draft(alice.DraftSend(convo, "by a generated client")))
	c.add(alice, xrpc.ClaimCall(testbed.DIDs(others[3:]), c.w.Suite, convo, xrpc.NewKey()))
	c.add(grace, xrpc.StatsCall())
	c.add(grace, query(mlsapi.NSIDGetOwnKeyPackages, url.Values{"limit": {"2"}}))
	packages := c.claim(alice, "", dave)
	c.add(alice, c.draft(alice.DraftCreate(testbed.DIDs(others[:1]), packages)))
	packages = c.claim(alice, convo, erin)
	c.add(alice, c.draft(alice.DraftAdd(convo, testbed.DIDs(others[1:2]), packages)))
	c.add(bob, c.draft(bob.DraftCommit(quiet, mlsclient.Change{})))
	tablet, err := c.w.SecondDevice(carol, "tablet")
	c.must(err)
	info, err := tablet.GroupInfo(ctx, rejoin)
	c.must(err)
	c.add(carol, c.draft(tablet.DraftRejoin(rejoin, info)))
	c.add(bob, c.draft(bob.DraftLeave(rejoin)))
	c.add(alice, query(mlsapi.NSIDGetInvitations, url.Values{"limit": {"10"}}))
	c.add(alice, query(mlsapi.NSIDGetWelcomeStatus, url.Values{"convoId": {convo}}))
	c.add(frank, xrpc.WelcomeCall(invited, ""))
	c.add(frank, xrpc.ConfirmCall(invited, "", true, ""))
	c.add(grace, c.draft(grace.DraftPublish()))
	one, err := grace.Device.KeyPackage()
	c.must(err)
	c.add(grace, xrpc.PublishManyCall([]mlsclient.KeyPackage{one}, c.w.Suite, xrpc.NewKey()))
	c.add(grace, xrpc.RegisterCall("phone", "https://push.example.com/hook", xrpc.NewKey()))
	c.add(grace, xrpc.Procedure(mlsapi.NSIDUnregisterPushTarget, "", "",
		&mlsapi.UnregisterPushTargetInput{DeviceID: "phone"}))
	c.add(grace, xrpc.WithdrawCall("a lost device", xrpc.NewKey()))
	c.add(grace, xrpc.Call{Method: mlsapi.NSIDGetSubscriptionTicket, Body: []byte{}})
	c.session(grace)
	c.attachment(alice, convo)
	hash := sha256.Sum256(group.Authenticator())
	still, err := alice.Group(invited) // no call above commits in this convo
	c.must(err)
	info, err = still.GroupInfo()
	c.must(err)
	c.add(alice, xrpc.Procedure(mlsapi.NSIDPublishGroupInfo, invited, "",
		&mlsapi.PublishGroupInfoInput{ConvoID: invited, GroupInfo: info}))
	c.add(alice, xrpc.ReportEpochCall(convo, group.Epoch(), hash[:], nil))
	c.add(bob, xrpc.ReportCommitCall(convo, group.Epoch(), "undecryptable"))
	fresh, err := alice.Device.Create([]byte("instead of " + invited))
	c.must(err)
	next, err := fresh.GroupInfo()
	c.must(err)
	c.add(alice, xrpc.ResetCall(invited, "other", &mlsclient.Staged{GroupInfo: next}, xrpc.NewKey()))
	c.add(alice, query(mlsapi.NSIDExportMyData, url.Values{"limit": {"10"}}))
	leaving, err := c.w.Phones(ctx, 2)
	c.must(err)
	c.add(leaving[0], erase(nil))
	c.add(leaving[1], erase(c.confirmation(leaving[1])))
	c.serverSentEvent(alice)
	c.frame(alice)
	return c.calls
}

func query(method string, parameters url.Values) xrpc.Call {
	return xrpc.Call{Method: syntax.NSID(method), Query: parameters}
}

// erase asks for the erasure of the caller's account. With a token, it begins the erasure.
func erase(token *string) xrpc.Call {
	key := xrpc.NewKey()
	in := &mlsapi.EraseMyAccountInput{ConfirmationToken: token, IdempotencyKey: &key}
	return xrpc.Procedure(mlsapi.NSIDEraseMyAccount, "", key, in)
}

// report reports a convo. Nobody opens the sealed part.
func report(convo, keyID string) xrpc.Call {
	key := xrpc.NewKey()
	return xrpc.Procedure(mlsapi.NSIDReportConvo, convo, key, &mlsapi.ReportConvoInput{
		ConvoID: convo, Reason: "spam", SealedReport: make([]byte, 100), KeyID: keyID, IdempotencyKey: &key,
	})
}

func (c *caller) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) convo(by, member *client.Phone) string {
	c.t.Helper()
	c.must(member.Publish(c.t.Context(), 1))
	id, err := by.Create(c.t.Context(), member.Account.DID)
	c.must(err)
	return id
}

func (c *caller) claim(by *client.Phone, convo string, of *client.Phone) [][]byte {
	c.t.Helper()
	packages, err := by.Claim(c.t.Context(), convo, testbed.DIDs([]*client.Phone{of}))
	c.must(err)
	return packages
}

// reportKey is the id of the key that reports are sealed to.
func (c *caller) reportKey(of *client.Phone) string {
	c.t.Helper()
	answer, err := of.Net.Do(c.t.Context(), of.Account, query(mlsapi.NSIDGetReportKey, url.Values{}))
	c.must(err)
	var out mlsapi.GetReportKeyOutput
	c.must(json.Unmarshal(answer.Body, &out))
	return out.KeyID
}

// confirmation returns a token with which the phone's account can erase itself.
func (c *caller) confirmation(of *client.Phone) *string {
	c.t.Helper()
	answer, err := of.Net.Do(c.t.Context(), of.Account, erase(nil))
	c.must(err)
	var out mlsapi.EraseMyAccountOutput
	c.must(json.Unmarshal(answer.Body, &out))
	return out.ConfirmationToken
}

// attachment uploads a file, and adds the calls about the file, except the calls that carry its
// bytes.
func (c *caller) attachment(p *client.Phone, convo string) {
	c.t.Helper()
	file := []byte("ciphertext")
	create := xrpc.Procedure(mlsapi.NSIDCreateAttachment, convo, "", &mlsapi.CreateAttachmentInput{
		ConvoID: convo, Size: int64(len(file)), Sha256: fmt.Sprintf("%x", sha256.Sum256(file)),
	})
	answer, err := p.Net.Do(c.t.Context(), p.Account, create)
	c.must(err)
	created, err := xrpc.Decode[mlsapi.CreateAttachmentOutput](answer.Body)
	c.must(err)
	token, err := p.Account.TokenFor(xrpc.DefaultServiceDID, mlsapi.NSIDPutAttachmentPart, tokenLife)
	c.must(err)
	query := url.Values{"convoId": {convo}, "attachmentId": {created.AttachmentID}, "part": {"1"}}
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost,
		c.base+"/xrpc/"+mlsapi.NSIDPutAttachmentPart+"?"+query.Encode(), bytes.NewReader(file))
	c.must(err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/octet-stream")
	put, err := http.DefaultClient.Do(r)
	c.must(err)
	c.must(put.Body.Close())
	if put.StatusCode != http.StatusOK {
		c.t.Fatalf("putAttachmentPart answers %s", put.Status)
	}
	c.add(p, create)
	c.add(p, xrpc.Call{Method: mlsapi.NSIDGetAttachmentStatus,
		Query: url.Values{"convoId": {convo}, "attachmentId": {created.AttachmentID}}})
	c.add(p, xrpc.Procedure(mlsapi.NSIDCompleteAttachment, convo, "",
		&mlsapi.CompleteAttachmentInput{ConvoID: convo, AttachmentID: created.AttachmentID}))
	c.add(p, xrpc.Procedure(mlsapi.NSIDDeleteAttachment, convo, "",
		&mlsapi.DeleteAttachmentInput{ConvoID: convo, AttachmentID: created.AttachmentID}))
}

// session adds the calls about sessions. The call of refreshSession is made under a session.
func (c *caller) session(p *client.Phone) {
	c.t.Helper()
	device := strings.Repeat("0f", 32)
	buy := xrpc.Procedure(mlsapi.NSIDCreateSession, "", "", &mlsapi.CreateSessionInput{DeviceID: device})
	c.add(p, buy)
	answer, err := p.Net.Do(c.t.Context(), p.Account, buy)
	c.must(err)
	bought, err := xrpc.Decode[mlsapi.CreateSessionOutput](answer.Body)
	c.must(err)
	c.add(p, xrpc.Procedure(mlsapi.NSIDRefreshSession, "", "",
		&mlsapi.RefreshSessionInput{RefreshToken: bought.RefreshToken}))
	c.calls[len(c.calls)-1].Token = bought.Session
	c.add(p, xrpc.Procedure(mlsapi.NSIDDeleteSession, "", "", &mlsapi.DeleteSessionInput{DeviceID: &device}))
}

func (c *caller) draft(d *client.Draft, err error) xrpc.Call {
	c.t.Helper()
	c.must(err)
	return d.Call
}

// add adds a call, with a token of its own.
func (c *caller) add(p *client.Phone, made xrpc.Call) {
	c.t.Helper()
	token, err := p.Account.TokenFor(xrpc.DefaultServiceDID, made.Method, tokenLife)
	c.must(err)
	out := call{NSID: made.Method.String(), Kind: "procedure", Token: token}
	if made.Body == nil {
		out.Kind, out.Params = "query", c.params(made.Method.String(), made.Query)
	} else if len(made.Body) > 0 {
		out.Body = made.Body
	}
	c.calls = append(c.calls, out)
}

// params gives parameters the types of the lexicon.
func (c *caller) params(nsid string, query url.Values) map[string]any {
	c.t.Helper()
	data, err := lexicons.Files.ReadFile(lexicons.Path(nsid))
	c.must(err)
	sf := new(lexicon.SchemaFile)
	c.must(json.Unmarshal(data, sf))
	out := map[string]any{}
	for name, values := range query {
		method, ok := sf.Defs["main"].Inner.(lexicon.SchemaQuery)
		if !ok || method.Parameters == nil {
			c.t.Fatalf("%s takes no %s", nsid, name)
		}
		switch method.Parameters.Properties[name].Inner.(type) {
		case lexicon.SchemaInteger:
			n, err := strconv.Atoi(values[0])
			c.must(err)
			out[name] = n
		case lexicon.SchemaBoolean:
			out[name] = values[0] == "true"
		case lexicon.SchemaArray:
			out[name] = values
		case lexicon.SchemaString:
			out[name] = values[0]
		default:
			c.t.Fatalf("%s has no parameter %s", nsid, name)
		}
	}
	return out
}

// event adds an event for validation.
func (c *caller) event(nsid, name string, body []byte) {
	c.calls = append(c.calls, call{NSID: nsid, Kind: "event", Event: name, Body: body})
}

// serverSentEvent reads the first event of streamConvoEvents.
func (c *caller) serverSentEvent(p *client.Phone) {
	c.t.Helper()
	token, err := p.Account.TokenFor(xrpc.DefaultServiceDID, mlsapi.NSIDStreamConvoEvents, tokenLife)
	c.must(err)
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet,
		c.base+"/xrpc/"+mlsapi.NSIDStreamConvoEvents+"?cursor=0", nil)
	c.must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	c.must(err)
	defer resp.Body.Close()
	name := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "event:"); ok {
			name = strings.TrimSpace(text)
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data:"); ok && name != "" {
			c.event(mlsapi.NSIDStreamConvoEvents, name, []byte(strings.TrimSpace(text)))
			return
		}
	}
	c.t.Fatalf("the stream has no event: %s", resp.Status)
}

// frame reads the first event of subscribeConvoEvents.
func (c *caller) frame(p *client.Phone) {
	c.t.Helper()
	out, err := client.Ticket(c.t.Context(), c.w.Net, p.Account)
	c.must(err)
	address := strings.Replace(c.base, "http", "ws", 1) + "/xrpc/" + mlsapi.NSIDSubscribeConvoEvents +
		"?cursor=0&ticket=" + url.QueryEscape(out.Ticket)
	conn, resp, err := websocket.Dial(c.t.Context(), address, nil)
	c.must(err)
	if resp.Body != nil {
		defer resp.Body.Close()
	}
	defer conn.CloseNow()
	_, frame, err := conn.Read(c.t.Context())
	c.must(err)
	var header struct {
		Op int    `cbor:"op"`
		T  string `cbor:"t"`
	}
	rest, err := cbor.UnmarshalFirst(frame, &header)
	c.must(err)
	name, ok := strings.CutPrefix(header.T, "#")
	if header.Op != 1 || !ok {
		c.t.Fatalf("frame %+v", header)
	}
	body, err := atdata.UnmarshalCBOR(rest)
	c.must(err)
	var text bytes.Buffer
	c.must(json.NewEncoder(&text).Encode(body))
	c.event(mlsapi.NSIDSubscribeConvoEvents, name, text.Bytes())
}
