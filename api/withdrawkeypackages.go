package api

import (
	"context"
	"encoding/hex"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
	"mlsd/mls"
)

// WithdrawKeyPackages: blue.catbird.mls.withdrawKeyPackages.
func (h *handlers) WithdrawKeyPackages(c *call, in *mlsapi.WithdrawKeyPackagesInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	if err := c.actsFor(&in.DeviceID); err != nil {
		return err
	}
	w := keypackages.Withdrawal{Owner: c.caller, DeviceID: in.DeviceID}
	if in.KeyPackageRefs != nil {
		w.Refs = []mls.KeyPackageRef{}
	}
	for _, text := range in.KeyPackageRefs {
		if ref, err := hex.DecodeString(text); err == nil { // a text that is not hexadecimal names no KeyPackage
			w.Refs = append(w.Refs, ref)
		}
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		withdrawn, err := keypackages.Withdraw(ctx, tx, w)
		return &mlsapi.WithdrawKeyPackagesOutput{Withdrawn: withdrawn}, err
	})
}
