package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/keypackages"
	"mlsd/people/quota"
)

// The statuses of an item in the answer.
const (
	statusPublished = "published"
	statusDuplicate = "duplicate"
	statusRejected  = "rejected"
)

// PublishKeyPackages: blue.catbird.mls.publishKeyPackages. The key names the whole batch, so it is
// in the record and not in the rows of the KeyPackages. A request without a key is safe to repeat,
// because each KeyPackageRef is stored only once.
func (h *handlers) PublishKeyPackages(c *call, in *mlsapi.PublishKeyPackagesInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	c.uses(quota.KeyPackages, len(in.KeyPackages))
	for _, item := range in.KeyPackages {
		c.uses(quota.Bytes, len(item.KeyPackage))
	}
	results := make([]mlsapi.Result, len(in.KeyPackages))
	batch, indexes, err := publications(c, in.KeyPackages, results)
	if err != nil {
		return err
	}
	for {
		err := h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			published, err := keypackages.PublishAll(ctx, tx, batch)
			if err != nil {
				return nil, err
			}
			judged := make([]bool, len(results))
			for i, p := range published {
				if results[indexes[i]], err = result(p); err != nil {
					return nil, err
				}
				judged[indexes[i]] = !p.Early
			}
			giveBack(c, in.KeyPackages, results, judged)
			return &mlsapi.PublishKeyPackagesOutput{Results: results}, nil
		})
		unverified, ok := find[*keypackages.UnverifiedError](err)
		if !ok {
			return err
		}
		if err := h.verify(c, unverified.Bytes, unverified.Verify); err != nil {
			return err
		}
	}
}

// giveBack returns to the quotas what the items took and did not use. Items with bad signatures still
// count: a bad signature takes as long to verify as a good one. Items that are rejected for another
// reason cost the request only: a device with a wrong clock must not use up its day. judged says
// which items were accepted or rejected by their signatures.
func giveBack(c *call, items []mlsapi.Item, results []mlsapi.Result, judged []bool) {
	for i, r := range results {
		if r.Status != statusPublished { // nothing is stored for this item
			c.quota.Give(quota.Cost{Of: quota.Bytes, N: int64(len(items[i].KeyPackage))})
		}
		if r.Status == statusDuplicate || !judged[i] { // nothing was verified for this item
			c.quota.Give(quota.Cost{Of: quota.KeyPackages, N: 1})
		}
	}
}

// publications returns the items whose cipher suite is known, and their indexes. It sets the
// results of the other items.
func publications(c *call, items []mlsapi.Item, results []mlsapi.Result) (batch []keypackages.Publication,
	indexes []int, err error) {
	for i, item := range items {
		suite, err := cipherSuite(item.CipherSuite)
		if err != nil {
			if results[i], err = rejected(err); err != nil {
				return nil, nil, err
			}
			continue
		}
		p := keypackages.Publication{Owner: c.caller, Device: c.sessionDevice(), Body: item.KeyPackage, CipherSuite: suite}
		if item.Expires != nil {
			p.Expires = &item.Expires.Time
		}
		batch, indexes = append(batch, p), append(indexes, i)
	}
	return batch, indexes, nil
}

func result(p keypackages.Published) (mlsapi.Result, error) {
	if p.Err != nil {
		return rejected(p.Err)
	}
	ref, status := p.Ref.String(), statusPublished
	if p.Duplicate {
		status = statusDuplicate
	}
	return mlsapi.Result{KeyPackageRef: &ref, Status: status}, nil
}

// rejected returns the result of one item: the error that publishKeyPackage would answer. If the
// server is at fault, rejected returns err instead.
func rejected(err error) (mlsapi.Result, error) {
	f, ok := refusal(err)
	if !ok {
		return mlsapi.Result{}, err
	}
	return mlsapi.Result{Status: statusRejected, Error: &f.name, Message: &f.message}, nil
}
