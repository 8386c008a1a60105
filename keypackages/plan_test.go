package keypackages_test

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/people/consent"
)

//go:embed claim.sql
var claim string

// A claim counts the outsiders' claims of a device by an index that has only these, and not beyond
// the budget. Bob's 20 devices have 200 claims of people whom he knows each, and 200 of outsiders.
func TestClaimCountsByIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for _, sql := range []string{
		`INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		SELECT 'did:plc:bob', convert_to('new' || device, 'UTF8'), device::text, 1, '', now() + interval '1 d', false,
			'available', now()
		FROM generate_series(1, 20) AS device`,
		`INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, claimed_by,
				claimed_by_outsider,
			claimed_at, claim_expires_at, created_at)
		SELECT 'did:plc:bob', convert_to(device || ' ' || n, 'UTF8'), device::text, 1, '', now() + interval '1 d', false,
			'claimed',
			'did:plc:' || n, n > 200, now() - interval '1 h', now(), now()
		FROM generate_series(1, 20) AS device, generate_series(1, 400) AS n`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var plan []struct{ Plan node }
	err := db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+strings.TrimSpace(claim),
		pgx.NamedArgs{"dids": []string{"did:plc:bob"}, "suite": 0, "caller": "did:plc:carol", "lifetime": time.Hour,
			"most": 500, "devices": 20, "budget": keypackages.Budget, "period": 24 * time.Hour, "few": 10,
			"outsiders": keypackages.OutsidersBudget, "newest": consent.NewestConvos}).Scan(&plan)
	if err != nil {
		t.Fatal(err)
	}
	if n := plan[0].Plan.Rows; n != 20 {
		t.Errorf("%v rows, not one for each device whose budget is used up", n)
	}
	if n := plan[0].Plan.counted(); n != keypackages.OutsidersBudget {
		t.Errorf("%v claims of outsiders of one device were read by their index", n)
	}
	const pagesOfOne = keypackages.OutsidersBudget + 10
	if n := plan[0].Plan.Pages; n == 0 || n > 20*pagesOfOne {
		t.Errorf("%d pages were read", n)
	}
}

// node is a node of a plan.
type node struct {
	Index string  `json:"Index Name"`
	Rows  float64 `json:"Actual Rows"` // of one loop
	Pages int     `json:"Shared Hit Blocks"`
	Plans []node
}

// counted is how many claims of outsiders the plan reads for one device.
func (n node) counted() (rows float64) {
	if n.Index == "key_packages_outsiders" {
		rows = n.Rows
	}
	for _, below := range n.Plans {
		rows += below.counted()
	}
	return rows
}
