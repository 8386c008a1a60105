package clientsim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlsd/api/mlsapi"
)

// Metadata gives a convo a name and a description, and messages embeds: every
// member reads them as they were sent, in every answer that shows them, and a
// key does not stand for another embed.
func Metadata(ctx context.Context, w *World) error {
	phones, err := w.Phones(ctx, 3)
	if err != nil {
		return err
	}
	alice := phones[0]
	packages, err := alice.Claim(ctx, "", dids(phones[1:]))
	if err != nil {
		return err
	}
	d, err := alice.DraftCreate(dids(phones[1:]), packages)
	if err != nil {
		return err
	}
	in, err := mlsapi.DecodeCreateConvoInput(d.Call.Body)
	if err != nil {
		return err
	}
	name, description := "Lunch, \"☕\" & 📎", strings.Repeat("é", 256) // 512 bytes of UTF-8
	in.Metadata = &mlsapi.ConvoMetadata{Name: &name, Description: &description}
	answer, err := alice.deliverAs(ctx, d, in)
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeCreateConvoOutput(answer.Body)
	if err != nil {
		return err
	}
	w.sameMetadata("createConvo", in.Metadata, out.Metadata)
	for _, p := range phones {
		if p != alice {
			if err := p.Join(ctx, out.ID); err != nil {
				return err
			}
		}
		if err := w.readMetadata(ctx, p, in.Metadata); err != nil {
			return err
		}
	}
	return w.embeds(ctx, out.ID, phones)
}

// deliverAs delivers a draft with another input, which the journal holds first.
func (p *Phone) deliverAs(ctx context.Context, d *Draft, in mlsapi.Appender) (Answer, error) {
	d.Call.Body = in.AppendJSON(nil)
	if _, err := p.journal(d, nil); err != nil {
		return Answer{}, err
	}
	return p.Deliver(ctx, d)
}

func (w *World) sameMetadata(where string, want, got *mlsapi.ConvoMetadata) {
	if got == nil || show(want.Name) != show(got.Name) || show(want.Description) != show(got.Description) {
		w.Broken("%s shows other metadata than were sent: %+v", where, got)
	}
}

// readMetadata reads the metadata of a phone's only convo in both ways.
func (w *World) readMetadata(ctx context.Context, p *Phone, want *mlsapi.ConvoMetadata) error {
	list, err := w.list(ctx, p)
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return fmt.Errorf("%s has %d convos, want 1", p.Name, len(list))
	}
	w.sameMetadata("getConvos", want, list[0].Metadata)
	answer, err := w.net.Do(ctx, p.Account, convoCall(list[0].ID))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeGetConvoOutput(answer.Body)
	if err != nil {
		return err
	}
	w.sameMetadata("getConvo", want, out.Convo.Metadata)
	return nil
}

// embeds sends messages with, with half, and without an embed.
func (w *World) embeds(ctx context.Context, convo string, phones []*Phone) error {
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
		sent = append(sent, show(in.EmbedType)+" at "+show(in.EmbedURI))
		if _, err := p.deliverAs(ctx, d, in); err != nil {
			return err
		}
		other := uri + "2"
		in.EmbedURI = &other
		_, err = w.net.Do(ctx, p.Account, procedure(mlsapi.NSIDSendMessage, convo, d.Call.Key, in))
		var named *CallError
		if !errors.As(err, &named) || named.Name != mlsapi.ErrIdempotencyConflict || !strings.Contains(named.Message, "embedUri") {
			w.Broken("a key reused with another embed: %v, want IdempotencyConflict that names embedUri", err)
		}
	}
	for _, p := range phones {
		answer, err := w.net.Do(ctx, p.Account, messagesCall(convo, "", 0, 100))
		if err != nil {
			return err
		}
		page, err := mlsapi.DecodeGetMessagesOutput(answer.Body)
		if err != nil {
			return err
		}
		var got []string
		for i := range page.Messages {
			got = append(got, show(page.Messages[i].EmbedType)+" at "+show(page.Messages[i].EmbedURI))
		}
		if !slices.Equal(sent, got) {
			w.Broken("%s is shown the embeds %q, want %q", p.Name, got, sent)
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}
