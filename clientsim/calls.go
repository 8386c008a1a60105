package clientsim

import (
	"encoding/hex"
	"net/url"
	"strconv"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
)

// This file makes the calls: one function per method that the simulator uses.

// newKey is a fresh idempotency key.
func newKey() string { return uuid.Must(uuid.NewV7()).String() }

func procedure(method, convo, key string, in mlsapi.Appender) Call {
	return Call{Method: syntax.NSID(method), Convo: convo, Key: key, Body: in.AppendJSON(nil)}
}

// optional is the pointer that an optional string takes: nil for "".
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func publishCall(kp KeyPackage, suite Suite, key string) Call {
	return procedure(mlsapi.NSIDPublishKeyPackage, "", key, &mlsapi.PublishKeyPackageInput{
		KeyPackage: kp.Message, CipherSuite: suite.Name(), IdempotencyKey: optional(key),
	})
}

func publishManyCall(packages []KeyPackage, suite Suite, key string) Call {
	in := &mlsapi.PublishKeyPackagesInput{IdempotencyKey: optional(key)}
	for _, kp := range packages {
		in.KeyPackages = append(in.KeyPackages, mlsapi.Item{KeyPackage: kp.Message, CipherSuite: suite.Name()})
	}
	return procedure(mlsapi.NSIDPublishKeyPackages, "", key, in)
}

func statsCall() Call { return query(mlsapi.NSIDGetKeyPackageStats, "", "") }

// createCall announces a group as founded: the epoch that it is in, and the
// Welcome of whoever was added on the way there.
func createCall(groupID []byte, suite Suite, members []syntax.DID, founded *Staged, key string) Call {
	epoch := int64(founded.Epoch)
	return procedure(mlsapi.NSIDCreateConvo, "", key, &mlsapi.CreateConvoInput{
		GroupID: hex.EncodeToString(groupID), CipherSuite: suite.Name(),
		InitialMembers: members, IdempotencyKey: optional(key),
		WelcomeMessage: founded.Welcome, GroupInfo: founded.GroupInfo, CurrentEpoch: &epoch,
	})
}

func addCall(convo string, dids []syntax.DID, staged *Staged, key string) Call {
	return procedure(mlsapi.NSIDAddMembers, convo, key, &mlsapi.AddMembersInput{
		ConvoID: convo, DIDList: dids, IdempotencyKey: optional(key),
		Commit: staged.Commit, WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo,
	})
}

func leaveCall(convo, key string) Call {
	return procedure(mlsapi.NSIDLeaveConvo, convo, key, &mlsapi.LeaveConvoInput{ConvoID: convo, IdempotencyKey: optional(key)})
}

func removeCall(convo string, target syntax.DID, staged *Staged, key string) Call {
	return procedure(mlsapi.NSIDLeaveConvo, convo, key, &mlsapi.LeaveConvoInput{
		ConvoID: convo, TargetDID: &target, IdempotencyKey: optional(key),
		Commit: staged.Commit, GroupInfo: staged.GroupInfo,
	})
}

func submitCall(convo string, staged *Staged, key string) Call {
	return procedure(mlsapi.NSIDSubmitCommit, convo, key, &mlsapi.SubmitCommitInput{
		ConvoID: convo, IdempotencyKey: optional(key),
		Commit: staged.Commit, WelcomeMessage: staged.Welcome, GroupInfo: staged.GroupInfo,
	})
}

func externalCall(convo string, staged *Staged, key string) Call {
	return procedure(mlsapi.NSIDProcessExternalCommit, convo, key, &mlsapi.ProcessExternalCommitInput{
		ConvoID: convo, IdempotencyKey: optional(key), Commit: staged.Commit, GroupInfo: staged.GroupInfo,
	})
}

func sendCall(convo string, sender syntax.DID, epoch uint64, ciphertext []byte, key string) Call {
	return procedure(mlsapi.NSIDSendMessage, convo, key, &mlsapi.SendMessageInput{
		ConvoID: convo, SenderDID: sender, Epoch: int64(epoch), Ciphertext: ciphertext, IdempotencyKey: optional(key),
	})
}

func confirmCall(convo, ref string, success bool, details string) Call {
	return procedure(mlsapi.NSIDConfirmWelcome, convo, "", &mlsapi.ConfirmWelcomeInput{
		ConvoID: convo, KeyPackageRef: optional(ref), Success: success, ErrorDetails: optional(details),
	})
}

func cursorCall(convo string, seq int64) Call {
	return procedure(mlsapi.NSIDUpdateCursor, convo, "", &mlsapi.UpdateCursorInput{ConvoID: convo, Seq: seq})
}

// registerCall has a device told by a webhook.
func registerCall(device, address, key string) Call {
	return procedure(mlsapi.NSIDRegisterPushTarget, "", key, &mlsapi.RegisterPushTargetInput{
		DeviceID: device, Kind: mlsapi.RegisterPushTargetInputKindWebhook, URL: &address, IdempotencyKey: optional(key),
	})
}

func unregisterCall(device, key string) Call {
	return procedure(mlsapi.NSIDUnregisterPushTarget, "", key, &mlsapi.UnregisterPushTargetInput{
		DeviceID: device, IdempotencyKey: optional(key),
	})
}

// query makes a query's call; pairs are names and values, and an empty value
// leaves its parameter out.
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

func claimCall(dids []syntax.DID, suite Suite, convo, key string) Call {
	pairs := []string{"cipherSuite", suite.Name()}
	for _, did := range dids {
		pairs = append(pairs, "dids", did.String())
	}
	return query(mlsapi.NSIDGetKeyPackages, convo, key, pairs...)
}

func messagesCall(convo, kind string, sinceSeq int64, limit int) Call {
	return query(mlsapi.NSIDGetMessages, convo, "",
		"type", kind, "sinceSeq", strconv.FormatInt(sinceSeq, 10), "limit", strconv.Itoa(limit))
}

func messagesSinceCall(convo, kind, cursor string, limit int) Call {
	return query(mlsapi.NSIDGetMessages, convo, "", "type", kind, "sinceMessage", cursor, "limit", strconv.Itoa(limit))
}

func convosCall(cursor string, limit int) Call {
	return query(mlsapi.NSIDGetConvos, "", "", "cursor", cursor, "limit", strconv.Itoa(limit))
}

func commitsCall(convo string, from uint64) Call {
	return query(mlsapi.NSIDGetCommits, convo, "", "fromEpoch", strconv.FormatUint(from, 10))
}

func epochCall(convo string) Call { return query(mlsapi.NSIDGetEpoch, convo, "") }

func convoCall(convo string) Call { return query(mlsapi.NSIDGetConvo, convo, "") }

func groupInfoCall(convo string) Call { return query(mlsapi.NSIDGetGroupInfo, convo, "") }

func welcomeCall(convo, ref string) Call {
	return query(mlsapi.NSIDGetWelcome, convo, "", "keyPackageRef", ref)
}

// nsid is the full name of one of the service's methods.
func nsid(method string) syntax.NSID { return syntax.NSID("blue.catbird.mls." + method) }
