package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Metadata gives a convo a name and a description, and gives messages embeds. Every member reads
// them unchanged in every answer. A key with another embed is a conflict.
func Metadata(ctx context.Context, w *testbed.World) {
	phones := Must(w.Phones(ctx, 3))
	alice := phones[0]
	packages := Must(alice.Claim(ctx, "", testbed.DIDs(phones[1:])))
	d := Must(alice.DraftCreate(testbed.DIDs(phones[1:]), packages))
	in := Must(mlsapi.DecodeCreateConvoInput(d.Call.Body))
	name, description := "Lunch, \"☕\" & 📎", strings.Repeat("é", 256) // 512 bytes of UTF-8
	in.Metadata = &mlsapi.ConvoMetadata{Name: &name, Description: &description}
	answer := deliverAs(ctx, alice, d, in)
	out := Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body))
	sameMetadata(w, "createConvo", in.Metadata, out.Metadata)
	for _, p := range phones {
		if p != alice {
			Check(p.Join(ctx, out.ID))
		}
		readMetadata(ctx, w, p, in.Metadata)
	}
	embeds(ctx, w, out.ID, phones)
}

// deliverAs journals another input for a draft, and delivers the draft.
func deliverAs(ctx context.Context, p *client.Phone, d *client.Draft, in any) xrpc.Answer {
	d.Call.Body = xrpc.Encode(in)
	Must(p.Journal(d, nil))
	return Must(p.Deliver(ctx, d))
}

func sameMetadata(w *testbed.World, where string, want, got *mlsapi.ConvoMetadata) {
	if got == nil || xrpc.Show(want.Name) != xrpc.Show(got.Name) ||
		xrpc.Show(want.Description) != xrpc.Show(got.Description) {
		w.Broken("%s shows other metadata than were sent: %+v", where, got)
	}
}

// readMetadata reads the metadata of a phone's only convo by getConvo and by getConvos.
func readMetadata(ctx context.Context, w *testbed.World, p *client.Phone, want *mlsapi.ConvoMetadata) {
	list := Must(w.List(ctx, p))
	if len(list) != 1 {
		Fail("%s has %d convos, want 1", p.Name, len(list))
	}
	sameMetadata(w, "getConvos", want, list[0].Metadata)
	out := Must(xrpc.Ask[mlsapi.GetConvoOutput](ctx, w.Net, p.Account, xrpc.ConvoCall(list[0].ID)))
	sameMetadata(w, "getConvo", want, out.Convo.Metadata)
}

// embeds sends messages with a full, a partial and no embed.
func embeds(ctx context.Context, w *testbed.World, convo string, phones []*client.Phone) {
	kind, uri := "app.bsky.embed.external", "https://example.test/a?b=c&d=%20e#f"
	embeds := [][2]*string{{&kind, &uri}, {&kind, nil}, {nil, nil}}
	var sent []string
	for i, p := range phones {
		d := Must(p.DraftSend(convo, fmt.Sprintf("with embed %d", i)))
		in := Must(mlsapi.DecodeSendMessageInput(d.Call.Body))
		in.EmbedType, in.EmbedURI = embeds[i][0], embeds[i][1]
		sent = append(sent, xrpc.Show(in.EmbedType)+" at "+xrpc.Show(in.EmbedURI))
		deliverAs(ctx, p, d, in)
		other := uri + "2"
		in.EmbedURI = &other
		_, err := w.Net.Do(ctx, p.Account, xrpc.Procedure(mlsapi.NSIDSendMessage, convo, d.Call.Key, in))
		var named *xrpc.CallError
		if !errors.As(err, &named) || named.Name != mlsapi.ErrIdempotencyConflict ||
			!strings.Contains(named.Message, "embedUri") {
			w.Broken("a key reused with another embed: %v, want IdempotencyConflict that names embedUri", err)
		}
	}
	for _, p := range phones {
		page := Must(xrpc.Ask[mlsapi.GetMessagesOutput](ctx, w.Net, p.Account, xrpc.MessagesCall(convo, "", 0, 100)))
		var got []string
		for i := range page.Messages {
			got = append(got, xrpc.Show(page.Messages[i].EmbedType)+" at "+xrpc.Show(page.Messages[i].EmbedURI))
		}
		if !slices.Equal(sent, got) {
			w.Broken("%s is shown the embeds %q, want %q", p.Name, got, sent)
		}
	}
	Check(w.SyncAll(ctx, convo, phones...))
}
