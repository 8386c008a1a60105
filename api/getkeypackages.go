package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
)

// GetKeyPackages: blue.catbird.mls.getKeyPackages. It is a query by its verb, but it claims
// KeyPackages. A retry with the same key gets the same KeyPackages; a retry without a key gets
// others.
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
		convo, err := convoID(*p.ConvoID)
		if err != nil {
			return badRequest("convoId must be a convo's id")
		}
		claim.ConvoID, scope = &convo, *p.ConvoID
	}
	return h.write(c, scope, key, content(p.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		taken, err := keypackages.Claim(ctx, tx, claim)
		if err != nil {
			return nil, err
		}
		out := &mlsapi.GetKeyPackagesOutput{
			KeyPackages: make([]mlsapi.KeyPackageRef, len(taken.Claimed)), Missing: taken.Missing, Limited: taken.Limited,
		}
		for i, k := range taken.Claimed {
			out.KeyPackages[i] = claimedView(k)
		}
		return out, nil
	})
}

func claimedView(k keypackages.Claimed) mlsapi.KeyPackageRef {
	ref := k.Ref.String()
	return mlsapi.KeyPackageRef{
		DID: k.DID, KeyPackage: k.Body, CipherSuite: k.CipherSuite.String(), KeyPackageRef: &ref, DeviceID: &k.DeviceID,
		LastResort: &k.LastResort, ClaimExpiresAt: datetime(k.ExpiresAt),
	}
}
