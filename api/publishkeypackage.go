package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
	"mlsd/people/quota"
)

// PublishKeyPackage: blue.catbird.mls.publishKeyPackage. A request without a key is safe to repeat,
// because the KeyPackageRef is stored only once.
func (h *handlers) PublishKeyPackage(c *call, in *mlsapi.PublishKeyPackageInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	suite, err := cipherSuite(in.CipherSuite)
	if err != nil {
		return err
	}
	p := keypackages.Publication{Owner: c.caller, Device: c.sessionDevice(), Body: in.KeyPackage, CipherSuite: suite,
		Key: key}
	if in.Expires != nil {
		p.Expires = &in.Expires.Time
	}
	c.uses(quota.KeyPackages, 1)
	c.uses(quota.Bytes, len(in.KeyPackage))
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		ref, err := keypackages.Publish(ctx, tx, p)
		return &mlsapi.PublishKeyPackageOutput{KeyPackageRef: new(ref.String())}, err
	})
}
