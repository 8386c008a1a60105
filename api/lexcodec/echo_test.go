package lexcodec_test

import (
	"errors"
	"net/url"
	"testing"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

// echo is a handler that keeps what it was called with.
type echo struct{ got any }

type none struct{}

func (e *echo) keep(v any) error { e.got = v; return nil }

func (e *echo) AcceptConvo(_ none, in *mlsapi.AcceptConvoInput) error       { return e.keep(in) }
func (e *echo) BlockActor(_ none, in *mlsapi.BlockActorInput) error         { return e.keep(in) }
func (e *echo) ReportConvo(_ none, in *mlsapi.ReportConvoInput) error       { return e.keep(in) }
func (e *echo) GetReportKey(none) error                                     { return e.keep(nil) }
func (e *echo) UnblockActor(_ none, in *mlsapi.UnblockActorInput) error     { return e.keep(in) }
func (e *echo) EraseMyAccount(_ none, in *mlsapi.EraseMyAccountInput) error { return e.keep(in) }
func (e *echo) ExportMyData(_ none, p *mlsapi.ExportMyDataParams) error     { return e.keep(p) }
func (e *echo) GetBlocks(_ none, p *mlsapi.GetBlocksParams) error           { return e.keep(p) }
func (e *echo) GetInvitationPolicy(none) error                              { return e.keep(nil) }
func (e *echo) SetInvitationPolicy(_ none, in *mlsapi.SetInvitationPolicyInput) error {
	return e.keep(in)
}
func (e *echo) CreateSession(_ none, in *mlsapi.CreateSessionInput) error           { return e.keep(in) }
func (e *echo) DeleteSession(_ none, in *mlsapi.DeleteSessionInput) error           { return e.keep(in) }
func (e *echo) RefreshSession(_ none, in *mlsapi.RefreshSessionInput) error         { return e.keep(in) }
func (e *echo) AddMembers(_ none, in *mlsapi.AddMembersInput) error                 { return e.keep(in) }
func (e *echo) ConfirmWelcome(_ none, in *mlsapi.ConfirmWelcomeInput) error         { return e.keep(in) }
func (e *echo) CreateConvo(_ none, in *mlsapi.CreateConvoInput) error               { return e.keep(in) }
func (e *echo) GetCommits(_ none, p *mlsapi.GetCommitsParams) error                 { return e.keep(p) }
func (e *echo) GetConvo(_ none, p *mlsapi.GetConvoParams) error                     { return e.keep(p) }
func (e *echo) GetConvos(_ none, p *mlsapi.GetConvosParams) error                   { return e.keep(p) }
func (e *echo) GetEpoch(_ none, p *mlsapi.GetEpochParams) error                     { return e.keep(p) }
func (e *echo) GetLogHead(_ none, p *mlsapi.GetLogHeadParams) error                 { return e.keep(p) }
func (e *echo) GetLogProof(_ none, p *mlsapi.GetLogProofParams) error               { return e.keep(p) }
func (e *echo) GetGroupInfo(_ none, p *mlsapi.GetGroupInfoParams) error             { return e.keep(p) }
func (e *echo) GetKeyPackageStats(_ none, p *mlsapi.GetKeyPackageStatsParams) error { return e.keep(p) }
func (e *echo) GetKeyPackages(_ none, p *mlsapi.GetKeyPackagesParams) error         { return e.keep(p) }
func (e *echo) GetMessages(_ none, p *mlsapi.GetMessagesParams) error               { return e.keep(p) }
func (e *echo) GetWelcome(_ none, p *mlsapi.GetWelcomeParams) error                 { return e.keep(p) }
func (e *echo) LeaveConvo(_ none, in *mlsapi.LeaveConvoInput) error                 { return e.keep(in) }
func (e *echo) PublishKeyPackage(_ none, in *mlsapi.PublishKeyPackageInput) error   { return e.keep(in) }
func (e *echo) PublishKeyPackages(_ none, in *mlsapi.PublishKeyPackagesInput) error {
	return e.keep(in)
}
func (e *echo) ProcessExternalCommit(_ none, in *mlsapi.ProcessExternalCommitInput) error {
	return e.keep(in)
}
func (e *echo) ReportCommit(_ none, in *mlsapi.ReportCommitInput) error { return e.keep(in) }
func (e *echo) ReportEpoch(_ none, in *mlsapi.ReportEpochInput) error   { return e.keep(in) }
func (e *echo) RegisterPushTarget(_ none, in *mlsapi.RegisterPushTargetInput) error {
	return e.keep(in)
}
func (e *echo) UnregisterPushTarget(_ none, in *mlsapi.UnregisterPushTargetInput) error {
	return e.keep(in)
}
func (e *echo) WithdrawKeyPackages(_ none, in *mlsapi.WithdrawKeyPackagesInput) error {
	return e.keep(in)
}
func (e *echo) GetSubscriptionTicket(none) error { return e.keep(nil) }
func (e *echo) StreamConvoEvents(_ none, p *mlsapi.StreamConvoEventsParams) error {
	return e.keep(p)
}
func (e *echo) SubscribeConvoEvents(_ none, p *mlsapi.SubscribeConvoEventsParams) error {
	return e.keep(p)
}
func (e *echo) SendSignal(_ none, in *mlsapi.SendSignalInput) error               { return e.keep(in) }
func (e *echo) GetCursors(_ none, p *mlsapi.GetCursorsParams) error               { return e.keep(p) }
func (e *echo) GetCursorPolicy(none) error                                        { return e.keep(nil) }
func (e *echo) SetCursorPolicy(_ none, in *mlsapi.SetCursorPolicyInput) error     { return e.keep(in) }
func (e *echo) CreateAttachment(_ none, in *mlsapi.CreateAttachmentInput) error   { return e.keep(in) }
func (e *echo) PutAttachmentPart(_ none, p *mlsapi.PutAttachmentPartParams) error { return e.keep(p) }
func (e *echo) CompleteAttachment(_ none, in *mlsapi.CompleteAttachmentInput) error {
	return e.keep(in)
}
func (e *echo) GetAttachment(_ none, p *mlsapi.GetAttachmentParams) error { return e.keep(p) }
func (e *echo) GetAttachmentStatus(_ none, p *mlsapi.GetAttachmentStatusParams) error {
	return e.keep(p)
}
func (e *echo) DeleteAttachment(_ none, in *mlsapi.DeleteAttachmentInput) error { return e.keep(in) }
func (e *echo) SubmitCommit(_ none, in *mlsapi.SubmitCommitInput) error         { return e.keep(in) }
func (e *echo) SendMessage(_ none, in *mlsapi.SendMessageInput) error           { return e.keep(in) }
func (e *echo) UpdateCursor(_ none, in *mlsapi.UpdateCursorInput) error         { return e.keep(in) }

// serve decodes a request and returns what the handler would have got. Any error
// that is not a Violation fails the test.
func serve(t *testing.T, r mlsapi.Route[none], query url.Values, body []byte) (any, *lexcodec.Violation) {
	t.Helper()
	e := new(echo)
	err := r.Serve(e, none{}, query, body)
	if err == nil {
		return e.got, nil
	}
	var v *lexcodec.Violation
	if !errors.As(err, &v) || v.Rule == "" || v.Message == "" {
		t.Fatalf("%s: %T %v is no Violation", r.Method.NSID, err, err)
	}
	return nil, v
}
