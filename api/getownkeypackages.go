package api

import (
	"encoding/hex"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
	"mlsd/mls"
)

// GetOwnKeyPackages: blue.catbird.mls.getOwnKeyPackages. A page's cursor is the last KeyPackageRef
// of the page.
func (h *handlers) GetOwnKeyPackages(c *call, p *mlsapi.GetOwnKeyPackagesParams) error {
	if err := c.actsFor(p.DeviceID); err != nil {
		return err
	}
	var after mls.KeyPackageRef
	if p.Cursor != nil {
		var err error
		if after, err = hex.DecodeString(*p.Cursor); err != nil {
			return errCursor
		}
	}
	own, more, err := keypackages.List(c.ctx, h.DB, c.caller, or(p.DeviceID, ""), after, int(p.Limit))
	if err != nil {
		return err
	}
	out := &mlsapi.GetOwnKeyPackagesOutput{KeyPackages: make([]mlsapi.OwnKeyPackage, len(own))}
	for i, k := range own {
		out.KeyPackages[i] = mlsapi.OwnKeyPackage{
			KeyPackageRef: k.Ref.String(), DeviceID: k.DeviceID, CipherSuite: k.CipherSuite.String(), State: k.State,
			LastResort: k.LastResort, CreatedAt: lexcodec.NewDatetime(k.CreatedAt), Expires: lexcodec.NewDatetime(k.NotAfter),
			ClaimedAt: datetime(k.ClaimedAt),
		}
	}
	if more {
		out.Cursor = lexcodec.Pointer(own[len(own)-1].Ref.String())
	}
	return c.reply(out)
}
