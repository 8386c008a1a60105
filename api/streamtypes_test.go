package api_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/fxamacker/cbor/v2"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/lexicons"
	"mlsd/outbox"
)

// eventDecoder reads the events of a stream by its lexicon alone.
type eventDecoder struct {
	t       *testing.T
	catalog *lexicon.BaseCatalog
	nsid    string
	seen    map[string]bool // the names of the definitions that it has read
}

// record is a lexicon of the test: a record with one member of a stream's union, because indigo
// checks records only.
const record = "com.example.event"

func newEventDecoder(t *testing.T, nsid string) *eventDecoder {
	t.Helper()
	d := &eventDecoder{t, lexicon.NewBaseCatalog(), nsid, map[string]bool{}}
	if err := d.catalog.LoadEmbedFS(lexicons.Files); err != nil {
		t.Fatal(err)
	}
	main, err := d.catalog.Resolve(nsid)
	if err != nil {
		t.Fatal(err)
	}
	var union lexicon.SchemaUnion
	switch m := main.Def.(type) {
	case lexicon.SchemaQuery:
		union = m.Output.Schema.Inner.(lexicon.SchemaUnion)
	case lexicon.SchemaSubscription:
		union = m.Message.Schema
	default:
		t.Fatalf("%s is a %T", nsid, main.Def)
	}
	for i, ref := range union.Refs {
		if strings.HasPrefix(ref, "#") {
			union.Refs[i] = nsid + ref
		}
	}
	refs, err := json.Marshal(union.Refs)
	if err != nil {
		t.Fatal(err)
	}
	var file lexicon.SchemaFile
	err = json.Unmarshal([]byte(`{"lexicon": 1, "id": "`+record+`", "defs": {"main": {"type": "record", "key": "any",
		"record": {"type": "object", "required": ["event"], "properties": {"event":
			{"type": "union", "closed": true, "refs": `+string(refs)+`}}}}}}`), &file)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.catalog.AddSchemaFile(file); err != nil {
		t.Fatal(err)
	}
	return d
}

// reads checks an event, and that its definition is name, with "#".
func (d *eventDecoder) reads(name string, event map[string]any) {
	d.t.Helper()
	if got := event["$type"]; got != d.nsid+name {
		d.t.Errorf("the $type of %s is %v", name, got)
	}
	err := lexicon.ValidateRecord(d.catalog, map[string]any{"$type": record, "event": event}, record, 0)
	if err != nil {
		d.t.Errorf("%s of %s: %v\n%v", name, d.nsid, err, event)
	}
	d.seen[name] = true
}

func (d *eventDecoder) serverSent(e sent) {
	d.t.Helper()
	event, err := atdata.UnmarshalJSON([]byte(e.data))
	if err != nil {
		d.t.Fatalf("%v: %s", err, e.data)
	}
	d.reads("#"+e.event, event)
}

// frame reads a frame, whose header has the name.
func (d *eventDecoder) frame(frame []byte) {
	d.t.Helper()
	var header struct {
		Op   int    `cbor:"op"`
		Type string `cbor:"t"`
	}
	body, err := cbor.UnmarshalFirst(frame, &header)
	if err != nil || header.Op != 1 {
		d.t.Fatalf("op %d: %v: %x", header.Op, err, frame)
	}
	event, err := atdata.UnmarshalCBOR(body)
	if err != nil {
		d.t.Fatalf("%v: %x", err, body)
	}
	if _, has := event["$type"]; has {
		d.t.Errorf("the body of a frame of %s has a $type", header.Type)
	}
	event["$type"] = d.nsid + header.Type
	d.reads(header.Type, event)
}

// Every event of both streams is read by a decoder that has nothing but the lexicon: members of a
// union in JSON have their $type (https://atproto.com/specs/data-model), and frames have it in their
// header.
func TestEventsByTheLexicon(t *testing.T) {
	t.Parallel()
	frames := newEventDecoder(t, mlsapi.NSIDSubscribeConvoEvents)
	lines := newEventDecoder(t, mlsapi.NSIDStreamConvoEvents)

	w := newWorld(t, live)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "hello")
	alice.rotate(c)
	socket, stream := bob.dial("cursor", "0"), bob.stream(query("cursor", "0"))
	for range 5 {
		frames.frame(socket.read())
		lines.serverSent(stream.event())
	}

	pretended := newWorld(t)
	h, carol := pretended.pretend(), pretended.user()
	h.outdated = true
	socket = carol.dial("cursor", "1")
	pretendedEvents(h.next(t))
	stream = carol.stream(query("cursor", "1"))
	pretendedEvents(h.next(t))
	for range 11 {
		frames.frame(socket.read())
		lines.serverSent(stream.event())
	}
	want := []string{"#arrivalEvent", "#commitEvent", "#cursorEvent", "#disputeEvent", "#infoEvent", "#invitationEvent",
		"#keyPackagesEvent", "#membershipEvent", "#messageEvent", "#metadataEvent", "#resetEvent",
		"#roleEvent", "#typingEvent", "#welcomeEvent"} // and #reactionEvent, which is never sent
	for _, d := range []*eventDecoder{frames, lines} {
		if got := slices.Sorted(maps.Keys(d.seen)); !slices.Equal(got, want) {
			t.Errorf("%s has sent %v, want %v", d.nsid, got, want)
		}
	}
}

// pretendedEvents sends an event of each kind that is made by nothing simple. A subscription with an
// outdated cursor begins with an info event.
func pretendedEvents(s *subscription) {
	s.events <- welcomeEvent(7)
	s.events <- &events.Event{StreamSeq: 8, Kind: outbox.KeyPackages, At: streamAt,
		Detail: outbox.Detail{DeviceID: "phone", CipherSuite: 1, Change: "low", Available: 3}}
	s.events <- &events.Event{StreamSeq: 9, Kind: outbox.Dispute, ConvoID: uuid.Max, Seq: 4, At: streamAt,
		Detail: outbox.Detail{Change: "disputed", Epoch: 3, By: "did:plc:bob"}}
	s.events <- &events.Event{StreamSeq: 10, Kind: outbox.Arrival, ConvoID: uuid.Max, DID: "did:plc:alice", At: streamAt,
		Detail: outbox.Detail{Change: "consumed", Epoch: 3, By: "did:plc:bob"}}
	s.events <- &events.Event{StreamSeq: 11, Kind: outbox.Reset, ConvoID: uuid.Max, Seq: 5, At: streamAt,
		Detail: outbox.Detail{By: "did:plc:bob", Epoch: 3, Reason: "forked", SuccessorID: uuid.Max, SuccessorGroupID: "00",
			PredecessorID: uuid.Max}}
	s.events <- &events.Event{StreamSeq: 12, Kind: outbox.Invitation, DID: "did:plc:alice", At: streamAt,
		Detail: outbox.Detail{Change: "ended", Service: "did:web:mls.example.net", ConvoID: uuid.Max.String(),
			By: "did:plc:bob", DeviceID: "phone", KeyPackageRef: "00", Epoch: 1, Request: true}}
	s.events <- &events.Event{StreamSeq: 13, Kind: outbox.Role, ConvoID: uuid.Max, Seq: 5, DID: "did:plc:alice",
		At: streamAt, Detail: outbox.Detail{Change: outbox.Promoted, By: "did:plc:bob"}}
	s.events <- &events.Event{StreamSeq: 14, Kind: outbox.Metadata, ConvoID: uuid.Max, Seq: 5, At: streamAt,
		Detail: outbox.Detail{By: "did:plc:bob"}}
	s.events <- &events.Event{ConvoID: uuid.Max,
		Signal: &signals.Signal{ConvoID: uuid.Max, Sender: "did:plc:bob", Payload: []byte{1}}}
	s.events <- &events.Event{ConvoID: uuid.Max,
		Signal: &signals.Signal{ConvoID: uuid.Max, Moves: []signals.Move{{DID: "did:plc:bob", Read: 3, Delivered: 4}}}}
}
