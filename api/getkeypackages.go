package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/idem"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/mls"
)

// GetKeyPackages: blue.catbird.mls.getKeyPackages. It is a query, although it claims KeyPackages. A
// retry with the same key gets the same KeyPackages; a retry without a key gets others. A token is
// good for one claim. A PDS can send a query twice with one token: the second request gets the
// first answer, which is found by the key or by the token. Under a session only the key prevents a
// second claim.
func (h *handlers) GetKeyPackages(c *call, p *mlsapi.GetKeyPackagesParams) error {
	key, err := c.key(p.IdempotencyKey)
	if err != nil {
		return err
	}
	claim := keypackages.ClaimRequest{Caller: c.caller, DIDs: p.DIDs}
	if p.CipherSuite != nil {
		if claim.CipherSuite, err = cipherSuite(*p.CipherSuite); err != nil {
			return err
		}
	}
	scope := ""
	if p.ConvoID != nil {
		convo, err := c.convoID(*p.ConvoID)
		if err != nil {
			return err
		}
		claim.ConvoID, scope = &convo, *p.ConvoID
	}
	withheld, err := h.Gate.Withheld(c.ctx, p.DIDs)
	if err != nil {
		return err
	}
	claim.Withheld = withheld
	if err := c.outside(func() error { return c.holdObjects(maxClaimed(claim)) }); err != nil {
		return err
	}
	key, used, err := c.useForClaim(key)
	if err != nil {
		return err
	}
	receipts, at := or(p.Receipts, false), time.Now()
	var first keypackages.ClaimResult
	err = h.write(c, scope, key, content(p.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if used != nil {
			return nil, used
		}
		taken, err := keypackages.Claim(ctx, tx, claim)
		if err != nil {
			return nil, err
		}
		first = taken
		return recordOf(taken, at)
	})
	if err != nil {
		return err
	}
	if c.replayed || c.found { // a repeated request can have claimed the same KeyPackages until another time
		return h.replayClaim(c, receipts)
	}
	return h.replyClaim(c, first, receipts, at)
}

// useForClaim uses up the caller's token. used is ErrReplayed if the token was used before. A claim
// without a key gets a key that is derived from the token. Under a session, each claim without a
// key is a new claim.
func (c *call) useForClaim(key string) (keyOfClaim string, used, err error) {
	if c.token == nil {
		return key, nil, nil
	}
	if key == "" {
		id := c.token.ID()
		key = "token:" + hex.EncodeToString(id[:])
	}
	used = c.token.Use(c.ctx)
	if used != nil && !errors.Is(used, serviceauth.ErrReplayed) {
		return "", nil, used
	}
	return key, used, nil
}

// maxClaimed is the largest size of the KeyPackages of a claim, in bytes. Their memory is reserved
// before the claim, so that no KeyPackage is used up for an answer that is then refused.
func maxClaimed(r keypackages.ClaimRequest) int {
	each := mls.MaxKeyPackageSize
	if r.CipherSuite != 0 {
		each = r.CipherSuite.Limits().KeyPackage
	}
	return keypackages.MaxClaimed(len(r.DIDs)) * each
}

// replyClaim sets the answer to a claim that was made at the given time.
func (h *handlers) replyClaim(c *call, r keypackages.ClaimResult, receipts bool, at time.Time) error {
	size := 0
	for _, k := range r.Claimed {
		size += len(k.Body)
	}
	out := claimAnswer(r)
	if receipts {
		if err := h.withReceipts(c, out, r.Claimed, at); err != nil {
			return err
		}
		size += len(r.Claimed) * network.MaxReceipt
	}
	return c.replyObjects(size, out)
}

func claimAnswer(r keypackages.ClaimResult) *mlsapi.GetKeyPackagesOutput {
	out := &mlsapi.GetKeyPackagesOutput{
		KeyPackages: make([]mlsapi.KeyPackageRef, len(r.Claimed)), Missing: r.Missing, Limited: r.Limited,
	}
	for i, k := range r.Claimed {
		out.KeyPackages[i] = claimedView(k)
	}
	return out
}

// claimRecord is what the record of a claim stores in place of the answer, which can have
// megabytes. It is JSON, and holds the KeyPackages without their content.
type claimRecord struct {
	At      int64        `json:"at"` // time of the claim, in Unix seconds; receipts contain it
	Claimed []claimOfDID `json:"claimed"`
	Missing []syntax.DID `json:"missing,omitempty"`
	Limited []syntax.DID `json:"limited,omitempty"`
}

// claimOfDID is what was claimed from one person, in the order of the answer.
type claimOfDID struct {
	DID  syntax.DID          `json:"did"`
	Refs []mls.KeyPackageRef `json:"refs"`
}

// recordOf returns the record of a claim that was made at the given time.
func recordOf(r keypackages.ClaimResult, at time.Time) (encoded, error) {
	record := claimRecord{At: at.Unix(), Missing: r.Missing, Limited: r.Limited}
	for i, k := range r.Claimed {
		if i == 0 || k.DID != r.Claimed[i-1].DID {
			record.Claimed = append(record.Claimed, claimOfDID{DID: k.DID})
		}
		of := &record.Claimed[len(record.Claimed)-1]
		of.Refs = append(of.Refs, k.Ref)
	}
	return json.Marshal(record)
}

// encoded is JSON.
type encoded []byte

// AppendJSON implements [lexcodec.Appender].
func (e encoded) AppendJSON(b []byte) []byte { return append(b, e...) }

// replayClaim makes the first answer again from the record in c.answer. The answer is lost if one
// of its KeyPackages was deleted early.
func (h *handlers) replayClaim(c *call, receipts bool) error {
	var record claimRecord
	if err := json.Unmarshal(c.answer, &record); err != nil {
		return fmt.Errorf("read the record of a claim: %w", err)
	}
	var ids []keypackages.ID
	for _, of := range record.Claimed {
		for _, ref := range of.Refs {
			ids = append(ids, keypackages.ID{DID: of.DID, Ref: ref})
		}
	}
	claimed, err := keypackages.ClaimedBefore(c.ctx, h.DB, ids)
	if errors.Is(err, keypackages.ErrNotFound) {
		return idem.ErrKeyTaken
	}
	if err != nil {
		return err
	}
	first := keypackages.ClaimResult{Claimed: claimed, Missing: record.Missing, Limited: record.Limited}
	return h.replyClaim(c, first, receipts, time.Unix(record.At, 0))
}

func claimedView(k keypackages.Claimed) mlsapi.KeyPackageRef {
	return mlsapi.KeyPackageRef{
		DID: k.DID, KeyPackage: k.Body, CipherSuite: k.CipherSuite.String(), KeyPackageRef: new(k.Ref.String()),
		DeviceID: &k.DeviceID, LastResort: &k.LastResort, ClaimExpiresAt: datetime(k.ExpiresAt),
	}
}
