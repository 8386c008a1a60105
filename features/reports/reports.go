// Package reports stores reports of abuse. A member of a convo tells the operator what it chooses
// to reveal. The member's device seals that to the operator's public key, so the server cannot read
// it. The private key is not on the server: the command mlsd admin report open uses it.
//
// The package owns the table abuse_reports. docs/clients/REPORTS.md says how a report is made.
package reports

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/people/quota"
)

const (
	// MaxSealed is the longest sealed report, in bytes.
	MaxSealed = quota.LargestReport
	// Keep is how long a report is kept, open or closed.
	Keep = 180 * 24 * time.Hour
	// KeepSealed is how long, at most, the sealed bytes are kept after the report was closed.
	KeepSealed = 30 * 24 * time.Hour
	// FormerMember is how long a person can report a convo after leaving it or being removed.
	FormerMember = 30 * 24 * time.Hour
	// minCharge is the least that a report counts in the sum of the open reports, and in the sum of
	// the closed reports, in bytes. So the sums bound the number of reports too.
	minCharge = 16 << 10
)

// Reason is the subject of a report, in a word that the server can read.
type Reason string

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{"spam", "harassment", "threats", "sexual", "childSafety", "selfHarm", "fraud", "other"}
}

// Known reports whether r is one of Reasons.
func (r Reason) Known() bool { return slices.Contains(Reasons(), r) }

// State says whether an operator still has to handle a report.
type State string

// The states.
const (
	Open   State = "open"
	Closed State = "closed"
)

// Errors of reports.
var (
	ErrDisabled   = errors.New("this service takes no reports: its operator has published no key")
	ErrUnknownKey = errors.New("keyId: the operator has another key now; read it with getReportKey, and seal the " +
		"report to it")
	ErrNotSealed = fmt.Errorf("sealedReport: want %d bytes of the encapsulated key and then the ciphertext, %d bytes "+
		"in all at most", encSize, MaxSealed)
	ErrReason   = fmt.Errorf("reason must be one of %s", strings.Join(words(Reasons()), ", "))
	ErrNotFound = errors.New("there is no report with this id")
	ErrCleared  = errors.New("what the report reveals was deleted: it was closed long ago, or many were closed since")
)

func words(reasons []Reason) (out []string) {
	for _, r := range reasons {
		out = append(out, string(r))
	}
	return out
}

// Binding returns the associated data of a sealed report: the SHA-256 of the convo's id, a line
// feed and the reporter's DID. So nobody can send a report again in another person's name, or about
// another convo. The binding stays in the row when the reporter is erased, so that the report can
// still be opened.
func Binding(convo uuid.UUID, reporter syntax.DID) []byte {
	sum := sha256.Sum256([]byte(convo.String() + "\n" + reporter.String()))
	return sum[:]
}
