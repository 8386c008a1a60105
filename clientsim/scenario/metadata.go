package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Metadata gives a convo a name and a description, and messages embeds. Every member reads them
// unchanged in every answer. A key with another embed is a conflict.
func Metadata(ctx context.Context, w *testbed.World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice := phones[0]
	packages, err := alice.Claim(ctx, "", testbed.DIDs(phones[1:]))
	if err != nil {
		return err
	}
	d, err := alice.DraftCreate(testbed.DIDs(phones[1:]), packages)
	if err != nil {
		return err
	}
	in, err := mlsapi.DecodeCreateConvoInput(d.Call.Body)
	if err != nil {
		return err
	}
	name, description := "Lunch, \"☕\" & 📎", strings.Repeat("é", 256) // 512 bytes of UTF-8
	in.Metadata = &mlsapi.ConvoMetadata{Name: &name, Description: &description}
	answer, err := deliverAs(ctx, alice, d, in)
	if err != nil {
		return err
	}
	out, err := xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)
	if err != nil {
		return err
	}
	sameMetadata(w, "createConvo", in.Metadata, out.Metadata)
	for _, p := range phones {
		if p != alice {
			if err := p.Join(ctx, out.ID); err != nil {
				return err
			}
		}
		if err := readMetadata(ctx, w, p, in.Metadata); err != nil {
			return err
		}
	}
	return embeds(ctx, w, out.ID, phones)
}

// deliverAs delivers a draft with another input, which is journaled first.
func deliverAs(ctx context.Context, p *client.Phone, d *client.Draft, in any) (xrpc.Answer, error) {
	d.Call.Body = xrpc.Encode(in)
	if _, err := p.Journal(d, nil); err != nil {
		return xrpc.Answer{}, err
	}
	return p.Deliver(ctx, d)
}

func sameMetadata(w *testbed.World, where string, want, got *mlsapi.ConvoMetadata) {
	if got == nil || xrpc.Show(want.Name) != xrpc.Show(got.Name) || xrpc.Show(want.Description) != xrpc.Show(got.Description) {
		w.Broken("%s shows other metadata than were sent: %+v", where, got)
	}
}

// readMetadata reads the metadata of a phone's only convo by getConvo and by getConvos.
func readMetadata(ctx context.Context, w *testbed.World, p *client.Phone, want *mlsapi.ConvoMetadata) error {
	list, err := w.List(ctx, p)
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return fmt.Errorf("%s has %d convos, want 1", p.Name, len(list))
	}
	sameMetadata(w, "getConvos", want, list[0].Metadata)
	answer, err := w.Net.Do(ctx, p.Account, xrpc.ConvoCall(list[0].ID))
	if err != nil {
		return err
	}
	out, err := xrpc.Decode[mlsapi.GetConvoOutput](answer.Body)
	if err != nil {
		return err
	}
	sameMetadata(w, "getConvo", want, out.Convo.Metadata)
	return nil
}

// embeds sends messages with a full, a partial and no embed.
func embeds(ctx context.Context, w *testbed.World, convo string, phones []*client.Phone) error {
	kind, uri := "app.bsky.embed.external", "https://example.test/a?b=c&d=%20e#f"
	embeds := [][2]*string{{&kind, &uri}, {&kind, nil}, {nil, nil}}
	var sent []string
	for i, p := range phones {
		d, err := p.DraftSend(convo, fmt.Sprintf("with embed %d", i))
		if err != nil {
			return err
		}
		in, err := mlsapi.DecodeSendMessageInput(d.Call.Body)
		if err != nil {
			return err
		}
		in.EmbedType, in.EmbedURI = embeds[i][0], embeds[i][1]
		sent = append(sent, xrpc.Show(in.EmbedType)+" at "+xrpc.Show(in.EmbedURI))
		if _, err := deliverAs(ctx, p, d, in); err != nil {
			return err
		}
		other := uri + "2"
		in.EmbedURI = &other
		_, err = w.Net.Do(ctx, p.Account, xrpc.Procedure(mlsapi.NSIDSendMessage, convo, d.Call.Key, in))
		var named *xrpc.CallError
		if !errors.As(err, &named) || named.Name != mlsapi.ErrIdempotencyConflict || !strings.Contains(named.Message, "embedUri") {
			w.Broken("a key reused with another embed: %v, want IdempotencyConflict that names embedUri", err)
		}
	}
	for _, p := range phones {
		answer, err := w.Net.Do(ctx, p.Account, xrpc.MessagesCall(convo, "", 0, 100))
		if err != nil {
			return err
		}
		page, err := xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body)
		if err != nil {
			return err
		}
		var got []string
		for i := range page.Messages {
			got = append(got, xrpc.Show(page.Messages[i].EmbedType)+" at "+xrpc.Show(page.Messages[i].EmbedURI))
		}
		if !slices.Equal(sent, got) {
			w.Broken("%s is shown the embeds %q, want %q", p.Name, got, sent)
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}
