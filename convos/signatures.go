package convos

import "mlsd/mls"

// maxSignatures is how many signatures of devices are verified inside a transaction. More would
// take so long that other requests would wait for the convo and for a database connection.
const maxSignatures = 16

// UnverifiedError says that a commit or its GroupInfo has too many signatures to verify inside a
// transaction. The caller of this package ends the transaction, calls Verify, and tries again with
// the same Proposed.
type UnverifiedError struct {
	Verify func() // stores the result in Proposed.Verified
}

func (*UnverifiedError) Error() string {
	return "there are too many signatures to verify inside a transaction"
}

// Verifications holds the results of verifications outside a transaction. The zero value holds none.
// It is for one request, and not safe for concurrent use.
type Verifications struct {
	changed verification[*mls.Change] // the result of Apply
	follows verification[*mls.Change] // the result of Follow
	group   verification[*mls.Group]
}

// applied runs apply, unless its result is known already. apply verifies at most n signatures
// against the group of epoch. The error can be an *UnverifiedError. That is also true of followed and tree.
func (v *Verifications) applied(epoch int64, n int, apply func() (*mls.Change, error)) (*mls.Change, error) {
	if v == nil {
		return apply()
	}
	return v.changed.of(epoch, n, apply)
}

func (v *Verifications) followed(epoch int64, n int, follow func() (*mls.Change, error)) (*mls.Change, error) {
	if v == nil {
		return follow()
	}
	return v.follows.of(epoch, n, follow)
}

func (v *Verifications) tree(epoch int64, n int, verify func() (*mls.Group, error)) (*mls.Group, error) {
	if v == nil {
		return verify()
	}
	return v.group.of(epoch, n, verify)
}

// verification is the result of verifying one object against the group of an epoch. The group of an
// epoch never changes.
type verification[T any] struct {
	done  bool
	epoch int64
	value T
	err   error
}

// of runs f, which verifies n signatures against the group of epoch. If n is large, f runs outside
// the transaction: until then, of returns an *UnverifiedError, and afterwards the result of f.
func (v *verification[T]) of(epoch int64, n int, f func() (T, error)) (T, error) {
	if n <= maxSignatures {
		return f()
	}
	if v.done && v.epoch == epoch {
		return v.value, v.err
	}
	var none T
	return none, &UnverifiedError{Verify: func() {
		v.value, v.err = f()
		v.done, v.epoch = true, epoch
	}}
}

// signatures returns an upper bound of the signatures of devices that Apply verifies: two for each
// KeyPackage, or one for each proposal that the commit refers to.
func signatures(commit *mls.Commit) int { return 2 * len(commit.Proposals) }
