package api

import (
	"encoding/base64"
	"fmt"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/messages"
)

// maxCommits bounds the commits of one answer. To get more, the client asks again from the last
// epoch that it has got.
const maxCommits = 500

// GetCommits: blue.catbird.mls.getCommits.
func (h *handlers) GetCommits(c *call, p *mlsapi.GetCommitsParams) error {
	_, member, err := c.member(c.db, p.ConvoID)
	if err != nil {
		return err
	}
	to := or(p.ToEpoch, member.Epoch)
	// A client that is up to date may ask for the next epoch. It gets an empty answer.
	if p.ToEpoch != nil && p.FromEpoch > to {
		return named(mlsapi.ErrInvalidEpochRange, fmt.Sprintf("fromEpoch is %d, and toEpoch %d; it must not be "+
			"less", p.FromEpoch, to))
	}
	if p.FromEpoch > member.Epoch+1 {
		return named(mlsapi.ErrInvalidEpochRange, fmt.Sprintf("fromEpoch is %d, and the convo's epoch %d; the next "+
			"one is the last that can be asked for",
			p.FromEpoch, member.Epoch))
	}
	answer, next, bytes, full := c.list(), p.FromEpoch, int64(0), false
	read := func(maxBytes int64) error {
		return messages.Commits(c.ctx, c.db, member.Window, next, to, maxCommits-answer.n, maxBytes,
			func(m *messages.Message) bool {
				full = !answer.add(&mlsapi.CommitView{
					Epoch: m.Epoch, Sender: m.Sender, CommitData: m.Body, CreatedAt: lexcodec.NewDatetime(m.CreatedAt),
				}, shownBytes+base64.RawStdEncoding.EncodedLen(len(m.Body)))
				next, bytes = m.Epoch+1, bytes+int64(len(m.Body))
				return !full
			})
	}
	if err := read(smallPage); err != nil {
		return err
	}
	if answer.n > 0 && next <= min(to, member.Epoch) && answer.n < maxCommits && !full {
		var large place
		defer large.release()
		more, err := h.largePage(c, &large)
		if err != nil {
			return err
		}
		if err := read(min(more, maxPageBytes-bytes)); err != nil {
			return err
		}
	}
	return c.replyList(answer, &mlsapi.GetCommitsOutput{ConvoID: p.ConvoID})
}
