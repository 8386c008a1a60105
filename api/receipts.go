package api

import (
	"time"

	"mlsd/api/mlsapi"
	"mlsd/keypackages"
)

// foreign holds the KeyPackages of other services for which a request has receipts.
type foreign struct {
	all []keypackages.Foreign
	// refused is the reason to refuse the request, or nil. The transaction returns it, so that a
	// repeated request still gets its first answer.
	refused error
}

// receipts verifies the receipts of a request. During its look-ups the request holds no database
// connection. The caller pays for the verified signatures.
func (h *handlers) receipts(c *call, texts []string) (f foreign, err error) {
	if len(texts) == 0 {
		return f, nil
	}
	err = c.outside(func() error {
		return h.find(c, len(texts), func() error {
			begun := time.Now()
			f.all, f.refused = h.Network.Verify(c.ctx, c.caller, texts)
			c.spend(int(time.Since(begun) / unitVerification))
			return c.ctx.Err()
		})
	})
	return f, err
}

// receiptsOfUnit is how many signatures take about unitVerification.
const receiptsOfUnit = 25

// withReceipts adds receipts to the answer of a claim that was made at the given time. The caller pays
// for the signatures, also if it repeats the claim.
func (h *handlers) withReceipts(c *call, out *mlsapi.GetKeyPackagesOutput, claimed []keypackages.Claimed,
	at time.Time) error {
	if h.Network.Alone() {
		return nil // no service takes an invitation to this one
	}
	c.spend((len(claimed) + receiptsOfUnit - 1) / receiptsOfUnit)
	receipts, err := h.Network.Receipts(claimed, c.caller, at)
	if err != nil {
		return err
	}
	for i := range receipts {
		out.KeyPackages[i].Receipt = &receipts[i]
	}
	return nil
}
