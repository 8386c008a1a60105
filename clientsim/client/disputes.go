package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// CommitError says that the device could not process an accepted commit. The device is stuck in the
// epoch before the commit.
type CommitError struct {
	Epoch  uint64 // the epoch that the commit created
	Sender syntax.DID
	Err    error
}

func (e *CommitError) Error() string {
	return fmt.Sprintf("the commit of epoch %d cannot be processed: %v", e.Epoch, e.Err)
}

func (e *CommitError) Unwrap() error { return e.Err }

// Times for the return of a stuck device.
const (
	firstPause   = 50 * time.Millisecond // before the second attempt; each pause is random, up to twice the last one
	longestPause = time.Second
	// A stuck device cannot process a certain commit. For this time it uses no GroupInfo that the same
	// committer has signed. trustTime applies while the convo is not in dispute, vouchTime while it
	// is.
	trustTime = 2 * time.Second
	vouchTime = 8 * time.Second
)

// Returning is how a device came back.
type Returning struct {
	Attempts int  // external commits and look-ups of the GroupInfo
	Unusable int  // GroupInfos that the device could not use
	Disputed bool // the convo was in dispute
}

// Follow reads the log as Sync does. If the device cannot process a commit, it reports the commit,
// and enters the group again by external commit. It tries until it is in the group, or until ctx
// ends. The pauses between attempts are random, because many devices return at the same time.
func (p *Phone) Follow(ctx context.Context, convo string, rng *rand.Rand) (r Returning, returned bool, err error) {
	for {
		err := p.Sync(ctx, convo)
		failed := new(CommitError)
		if !errors.As(err, &failed) {
			return r, returned, err
		}
		if err := p.Return(ctx, convo, failed, rng, &r); err != nil {
			return r, returned, err
		}
		returned = true
	}
}

// Return reports a commit that the device could not process, and enters the group by external
// commit.
func (p *Phone) Return(ctx context.Context, convo string, failed *CommitError, rng *rand.Rand,
	r *Returning) (err error) {
	defer Catch(&err)
	since, pause := time.Now(), firstPause
	for {
		answer := Must(p.ReportCommit(ctx, convo, failed))
		r.Disputed = r.Disputed || answer.Disputed
		xrpc.Sleep(ctx, time.Duration(rng.Int64N(int64(pause))))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Attempts++
		timeout, named := trustTime, failed.Sender.String()
		if answer.Disputed {
			timeout, named = vouchTime, answer.Committer.String()
		}
		if time.Since(since) > timeout {
			named = ""
		}
		in, err := p.tryReturn(ctx, convo, named, r)
		if in || err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// tryReturn makes one external commit. in is false if another commit was first, or if the device
// can use no GroupInfo. It uses no GroupInfo that the account in named has signed.
func (p *Phone) tryReturn(ctx context.Context, convo, named string, r *Returning) (in bool, err error) {
	groupInfo, err := p.GroupInfo(ctx, convo)
	if xrpc.ErrorName(err) == mlsapi.ErrGroupInfoNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := mlsclient.ReadInfo(groupInfo)
	if err != nil || info.Signer == named {
		r.Unusable++
		return false, nil //nolint:nilerr // another member provides a better one
	}
	d, err := p.DraftRejoin(convo, groupInfo)
	if err != nil {
		r.Unusable++
		return false, nil //nolint:nilerr // another member provides a better one
	}
	_, err = p.Deliver(ctx, d)
	switch xrpc.ErrorName(err) {
	case mlsapi.ErrEpochMismatch, mlsapi.ErrConvoDisputed:
		return false, nil
	case mlsapi.ErrInvalidCommit, mlsapi.ErrInvalidGroupInfo:
		r.Unusable++
		return false, nil
	}
	return err == nil, err
}

// ReportCommit tells the server that the device could not process a commit.
func (p *Phone) ReportCommit(ctx context.Context, convo string, failed *CommitError) (*mlsapi.ReportCommitOutput,
	error) {
	return xrpc.Ask[mlsapi.ReportCommitOutput](ctx, p.Net, p.Account,
		xrpc.ReportCommitCall(convo, failed.Epoch, "undecryptable"))
}

// ReportEpoch tells the server which epoch the device is in. In a dispute, the server's GroupInfo
// can be missing, or signed by the committer that the dispute names. Then the device sends its own
// GroupInfo, so that others can enter the group with it.
func (p *Phone) ReportEpoch(ctx context.Context, convo string) (_ *mlsapi.ReportEpochOutput, err error) {
	defer Catch(&err)
	group := Must(p.Group(convo))
	out, err := p.reportEpoch(ctx, convo, group, nil)
	if err != nil || !out.Disputed || out.Committer == nil || *out.Committer == p.Account.DID {
		return out, err
	}
	stored, err := p.GroupInfo(ctx, convo)
	if err != nil && xrpc.ErrorName(err) != mlsapi.ErrGroupInfoNotFound {
		return out, err
	}
	if err == nil {
		info, err := mlsclient.ReadInfo(stored)
		if err == nil && (info.Signer != out.Committer.String() || info.Epoch != group.Epoch()) {
			return out, nil
		}
	}
	own, err := group.GroupInfo()
	if err != nil {
		return out, err
	}
	return p.reportEpoch(ctx, convo, group, own)
}

func (p *Phone) reportEpoch(ctx context.Context, convo string, group mlsclient.Group,
	groupInfo []byte) (*mlsapi.ReportEpochOutput, error) {
	hash := sha256.Sum256(group.Authenticator())
	return xrpc.Ask[mlsapi.ReportEpochOutput](ctx, p.Net, p.Account,
		xrpc.ReportEpochCall(convo, group.Epoch(), hash[:], groupInfo))
}
