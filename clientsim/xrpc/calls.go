package xrpc

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
)

// This file makes the calls: one function per method that the simulator uses.

// NewKey returns a new idempotency key.
func NewKey() string { return uuid.Must(uuid.NewV7()).String() }

// Procedure makes a call of a procedure.
func Procedure(method, convo, key string, in any) Call {
	return Call{Method: syntax.NSID(method), Convo: convo, Key: key, Body: Encode(in)}
}

// optional returns nil for "", else a pointer to s.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// PublishCall publishes one KeyPackage.
func PublishCall(kp mlsclient.KeyPackage, suite mlsclient.Suite, key string) Call {
	return Procedure(mlsapi.NSIDPublishKeyPackage, "", key, &mlsapi.PublishKeyPackageInput{
		KeyPackage: kp.Message, CipherSuite: suite.Name(), IdempotencyKey: optional(key),
	})
}

// PublishManyCall publishes several KeyPackages.
func PublishManyCall(packages []mlsclient.KeyPackage, suite mlsclient.Suite, key string) Call {
	in := &mlsapi.PublishKeyPackagesInput{IdempotencyKey: optional(key)}
	for _, kp := range packages {
		in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: kp.Message, CipherSuite: suite.Name()})
	}
	return Procedure(mlsapi.NSIDPublishKeyPackages, "", key, in)
}

// StatsCall asks for the caller's KeyPackage counts.
func StatsCall() Call { return query(mlsapi.NSIDGetKeyPackageStats, "", "") }

// CreateCall announces a new group: its epoch, and the Welcome for the added members. receipts are
// for KeyPackages of other services.
func CreateCall(groupID []byte, suite mlsclient.Suite, members []syntax.DID, founded *mlsclient.Staged,
	key string, receipts ...string) Call {
	epoch := int64(founded.Epoch)
	return Procedure(mlsapi.NSIDCreateConvo, "", key, &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(groupID), CipherSuite: suite.Name(),
		InitialMembers: members, IdempotencyKey: optional(key), Receipts: receipts,
		WelcomeMessage: founded.Welcome, GroupInfo: founded.GroupInfo, CurrentEpoch: &epoch,
	})
}

// AddCall adds members by a staged commit. receipts are for KeyPackages of other services.
func AddCall(convo string, dids []syntax.DID, staged *mlsclient.Staged, key string, receipts ...string) Call {
	return Procedure(mlsapi.NSIDAddMembers, convo, key, &mlsapi.AddMembersInput{
		ConvoID: convo, DIDList: dids, IdempotencyKey: optional(key), Receipts: receipts,
		Commit: staged.Commit, WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo,
	})
}

// ResetCall replaces a convo's group by a new one.
func ResetCall(convo, reason string, founded *mlsclient.Staged, key string) Call {
	return Procedure(mlsapi.NSIDResetConvo, convo, key, &mlsapi.ResetConvoInput{
		ConvoID: convo, Reason: reason, IdempotencyKey: optional(key), WelcomeMessage: founded.Welcome,
		GroupInfo: founded.GroupInfo,
	})
}

// LeaveCall makes the caller leave.
func LeaveCall(convo, key string) Call {
	return Procedure(mlsapi.NSIDLeaveConvo, convo, key,
		&mlsapi.LeaveConvoInput{ConvoID: convo, IdempotencyKey: optional(key)})
}

// RemoveCall removes a member by a staged commit.
func RemoveCall(convo string, target syntax.DID, staged *mlsclient.Staged, key string) Call {
	return Procedure(mlsapi.NSIDLeaveConvo, convo, key, &mlsapi.LeaveConvoInput{
		ConvoID: convo, TargetDID: &target, IdempotencyKey: optional(key),
		Commit: staged.Commit, GroupInfo: staged.GroupInfo,
	})
}

// SubmitCall submits a staged commit that does not change the roster.
func SubmitCall(convo string, staged *mlsclient.Staged, key string) Call {
	return Procedure(mlsapi.NSIDSubmitCommit, convo, key, &mlsapi.SubmitCommitInput{
		ConvoID: convo, IdempotencyKey: optional(key),
		Commit: staged.Commit, WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo,
	})
}

// ExternalCall submits an external commit.
func ExternalCall(convo string, staged *mlsclient.Staged, key string) Call {
	return Procedure(mlsapi.NSIDProcessExternalCommit, convo, key, &mlsapi.ProcessExternalCommitInput{
		ConvoID: convo, IdempotencyKey: optional(key), Commit: staged.Commit, GroupInfo: staged.GroupInfo,
	})
}

// SendCall sends a message.
func SendCall(convo string, sender syntax.DID, epoch uint64, ciphertext []byte, key string) Call {
	return Procedure(mlsapi.NSIDSendMessage, convo, key, &mlsapi.SendMessageInput{
		ConvoID: convo, SenderDID: sender, Epoch: int64(epoch), Ciphertext: ciphertext, IdempotencyKey: optional(key),
	})
}

// ConfirmCall reports how joining by a Welcome went. Without ref, it is about the caller's only
// Welcome.
func ConfirmCall(convo, ref string, success bool, details string) Call {
	return Procedure(mlsapi.NSIDConfirmWelcome, convo, "", &mlsapi.ConfirmWelcomeInput{
		ConvoID: convo, KeyPackageRef: optional(ref), Success: success, ErrorDetails: optional(details),
	})
}

// CursorCall reports seq as read.
func CursorCall(convo string, seq int64) Call {
	return Procedure(mlsapi.NSIDUpdateCursor, convo, "", &mlsapi.UpdateCursorInput{ConvoID: convo, Seq: seq})
}

// ReportEpochCall reports the epoch that a device has entered. groupInfo can be nil.
func ReportEpochCall(convo string, epoch uint64, authenticatorHash, groupInfo []byte) Call {
	return Procedure(mlsapi.NSIDReportEpoch, convo, "", &mlsapi.ReportEpochInput{
		ConvoID: convo, Epoch: int64(epoch), AuthenticatorHash: authenticatorHash, GroupInfo: groupInfo,
	})
}

// ReportCommitCall reports a commit that a device could not process.
func ReportCommitCall(convo string, epoch uint64, reason string) Call {
	return Procedure(mlsapi.NSIDReportCommit, convo, "",
		&mlsapi.ReportCommitInput{ConvoID: convo, Epoch: int64(epoch), Reason: reason})
}

// AcceptCall accepts a request.
func AcceptCall(convo, key string) Call {
	return Procedure(mlsapi.NSIDAcceptConvo, convo, key,
		&mlsapi.AcceptConvoInput{ConvoID: convo, IdempotencyKey: optional(key)})
}

// RoleCall makes a member an admin, or an admin a member.
func RoleCall(convo string, did syntax.DID, promote bool, key string) Call {
	if promote {
		return Procedure(mlsapi.NSIDPromoteAdmin, convo, key,
			&mlsapi.PromoteAdminInput{ConvoID: convo, DID: did, IdempotencyKey: optional(key)})
	}
	return Procedure(mlsapi.NSIDDemoteAdmin, convo, key,
		&mlsapi.DemoteAdminInput{ConvoID: convo, DID: did, IdempotencyKey: optional(key)})
}

// UpdateConvoCall names a convo.
func UpdateConvoCall(convo, name, key string) Call {
	return Procedure(mlsapi.NSIDUpdateConvo, convo, key, &mlsapi.UpdateConvoInput{
		ConvoID: convo, Metadata: mlsapi.ConvoMetadata{Name: &name}, IdempotencyKey: optional(key),
	})
}

// BlockCall blocks an account.
func BlockCall(did syntax.DID, key string) Call {
	return Procedure(mlsapi.NSIDBlockActor, "", key, &mlsapi.BlockActorInput{DID: did, IdempotencyKey: optional(key)})
}

// UnblockCall ends a block.
func UnblockCall(did syntax.DID, key string) Call {
	return Procedure(mlsapi.NSIDUnblockActor, "", key, &mlsapi.UnblockActorInput{DID: did, IdempotencyKey: optional(key)})
}

// SetPolicyCall sets the caller's invitation policy.
func SetPolicyCall(policy, key string) Call {
	return Procedure(mlsapi.NSIDSetInvitationPolicy, "", key,
		&mlsapi.SetInvitationPolicyInput{Policy: policy, IdempotencyKey: optional(key)})
}

// RegisterCall registers a webhook for a device.
func RegisterCall(device, address, key string) Call {
	return Procedure(mlsapi.NSIDRegisterPushTarget, "", key, &mlsapi.RegisterPushTargetInput{
		DeviceID: device, Kind: mlsapi.RegisterPushTargetInputKindWebhook, URL: &address, IdempotencyKey: optional(key),
	})
}

// WithdrawCall withdraws the KeyPackages of one of the caller's devices, or some of them.
func WithdrawCall(deviceID, key string, refs ...string) Call {
	return Procedure(mlsapi.NSIDWithdrawKeyPackages, "", key, &mlsapi.WithdrawKeyPackagesInput{
		DeviceID: deviceID, KeyPackageRefs: refs, IdempotencyKey: optional(key),
	})
}

// query makes a query's call. pairs are names and values. An empty value leaves its parameter out.
func query(method, convo, key string, pairs ...string) Call {
	values := url.Values{}
	if convo != "" {
		values.Set("convoId", convo)
	}
	if key != "" {
		values.Set("idempotencyKey", key)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Add(pairs[i], pairs[i+1])
		}
	}
	return Call{Method: syntax.NSID(method), Convo: convo, Key: key, Query: values}
}

// ClaimCall claims a KeyPackage of each device of the accounts.
func ClaimCall(dids []syntax.DID, suite mlsclient.Suite, convo, key string) Call {
	pairs := []string{"cipherSuite", suite.Name()}
	for _, did := range dids {
		pairs = append(pairs, "dids", did.String())
	}
	return query(mlsapi.NSIDGetKeyPackages, convo, key, pairs...)
}

// ReceiptsCall is ClaimCall for people whose home is not the service of the convo.
func ReceiptsCall(dids []syntax.DID, suite mlsclient.Suite, key string) Call {
	call := ClaimCall(dids, suite, "", key)
	call.Query.Set("receipts", "true")
	return call
}

// HomeCall asks which delivery service a person has chosen.
func HomeCall(did syntax.DID) Call {
	return query(mlsapi.NSIDGetDeliveryService, "", "", "did", did.String())
}

// InvitationsCall lists the caller's invitations to convos of other services, after a cursor.
func InvitationsCall(cursor string, limit int) Call {
	return query(mlsapi.NSIDGetInvitations, "", "", "cursor", cursor, "limit", strconv.Itoa(limit))
}

// AcceptInvitationCall accepts the invitations to a convo of another service.
func AcceptInvitationCall(service syntax.DID, convo, key string) Call {
	return Procedure(mlsapi.NSIDAcceptInvitation, convo, key,
		&mlsapi.AcceptInvitationInput{Service: service, ConvoID: convo, IdempotencyKey: optional(key)})
}

// DeclineInvitationCall declines the invitations to a convo of another service.
func DeclineInvitationCall(service syntax.DID, convo, key string) Call {
	return Procedure(mlsapi.NSIDDeclineInvitation, convo, key,
		&mlsapi.DeclineInvitationInput{Service: service, ConvoID: convo, IdempotencyKey: optional(key)})
}

// MessagesCall reads the log after a seq. kind is "all", "" and so on, as the contract has it.
func MessagesCall(convo, kind string, sinceSeq int64, limit int) Call {
	return query(mlsapi.NSIDGetMessages, convo, "",
		"messageType", kind, "sinceSeq", strconv.FormatInt(sinceSeq, 10), "limit", strconv.Itoa(limit))
}

// MessagesSinceCall reads the log after a message's id.
func MessagesSinceCall(convo, kind, cursor string, limit int) Call {
	return query(mlsapi.NSIDGetMessages, convo, "", "messageType", kind, "sinceMessage", cursor, "limit",
		strconv.Itoa(limit))
}

// LogHeadCall asks for a signed head of the log, and for what stands for the senders in it.
func LogHeadCall(convo string, senders ...string) Call {
	call := query(mlsapi.NSIDGetLogHead, convo, "")
	for _, did := range senders {
		call.Query.Add("senders", did)
	}
	return call
}

// InclusionCall asks for the proof that an entry is in the log.
func InclusionCall(convo string, seq, size int64) Call {
	return query(mlsapi.NSIDGetLogProof, convo, "", "seq", strconv.FormatInt(seq, 10), "size", strconv.FormatInt(size, 10))
}

// ConsistencyCall asks for the proof that the log continues a shorter one.
func ConsistencyCall(convo string, from, size int64) Call {
	return query(mlsapi.NSIDGetLogProof, convo, "", "from", strconv.FormatInt(from, 10), "size",
		strconv.FormatInt(size, 10))
}

// ConvosCall lists the caller's convos after a cursor.
func ConvosCall(cursor string, limit int) Call {
	return query(mlsapi.NSIDGetConvos, "", "", "cursor", cursor, "limit", strconv.Itoa(limit))
}

// BlocksCall lists the accounts that the caller blocks.
func BlocksCall() Call { return query(mlsapi.NSIDGetBlocks, "", "") }

// PolicyCall reads the caller's invitation policy.
func PolicyCall() Call { return query(mlsapi.NSIDGetInvitationPolicy, "", "") }

// CommitsCall reads the commits from an epoch on.
func CommitsCall(convo string, from uint64) Call {
	return query(mlsapi.NSIDGetCommits, convo, "", "fromEpoch", strconv.FormatUint(from, 10))
}

// EpochCall asks for a convo's epoch.
func EpochCall(convo string) Call { return query(mlsapi.NSIDGetEpoch, convo, "") }

// ConvoCall asks for a convo.
func ConvoCall(convo string) Call { return query(mlsapi.NSIDGetConvo, convo, "") }

// GroupInfoCall asks for the present epoch's GroupInfo.
func GroupInfoCall(convo string) Call { return query(mlsapi.NSIDGetGroupInfo, convo, "") }

// WelcomeCall fetches a Welcome. Without ref, it fetches the caller's only Welcome.
func WelcomeCall(convo, ref string) Call {
	return query(mlsapi.NSIDGetWelcome, convo, "", "keyPackageRef", ref)
}

// NSID returns the full name of one of the service's methods.
func NSID(method string) syntax.NSID { return syntax.NSID("blue.catbird.mls." + method) }

// Show formats an optional field for messages.
func Show[T any](field *T) string {
	if field == nil {
		return "nothing"
	}
	return fmt.Sprintf("%#v", *field)
}

// IsReset reports whether a log entry belongs to a reset. Such an entry is no MLS message.
func IsReset(entry *mlsapi.MessageView) bool {
	return entry.MessageType != nil && *entry.MessageType == mlsapi.MessageViewMessageTypeReset
}

// IsCommit reports whether a log entry is a commit.
func IsCommit(entry *mlsapi.MessageView) bool {
	return entry.MessageType != nil && *entry.MessageType == "commit"
}

// IsHandshake reports whether an entry of the log is a commit or a proposal.
func IsHandshake(entry *mlsapi.MessageView) bool {
	return IsCommit(entry) || entry.MessageType != nil && *entry.MessageType == mlsapi.MessageViewMessageTypeProposal
}
