package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/attachments"
	"mlsd/idem"
	"mlsd/internal/nsid"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/people/accounts"
)

// policy is what the server decides about one method, besides what its lexicon says.
type policy struct {
	// maxBody is the longest body, in bytes. 0 means that the method has no body.
	maxBody int64
	// answerMemory is the memory reserved for the answer and for what it is made from, in bytes.
	answerMemory int64
	// maxTime is how long a request can take. 0 means maxRequest.
	maxTime time.Duration
	// lease is the lease of the method's work outside the database. 0 means that there is none.
	lease time.Duration
	// cost is what a request costs its caller, in units of the rate limit. 0 means 1. [call.spend]
	// adds what a request really spends.
	cost int
	// expensive says that a request takes several times as long as a message or a page, here and in
	// the database. See [admission].
	expensive bool
	token     tokenUse
	// noSession says that the method accepts no sessions, only service-auth tokens, and none whose key
	// is stale: it destroys or admits.
	noSession bool
	// recordLife is the lifetime of the method's idempotency records, unless the operator sets
	// another lifetime. 0 means that the method writes no records.
	recordLife time.Duration
	minLife    idem.Floor
	maxLife    time.Duration // the longest lifetime that an operator can set; 0 means idem.MaxLife
	// violations are the rules of the lexicon whose violation has its own error name.
	violations []violation
	// serves lists the states of accounts, besides active, that the method serves. A person has a
	// right to the account's data, whatever the account's host says. Accounts that the operator has
	// blocked are not served.
	serves []accounts.Status
	// services says that other services call the method. The list of admitted accounts does not
	// apply to them: the method asks package network whether to deal with the service.
	services bool
	// countOutcomes says that mlsd_welcome_fetches_total counts the method's answers.
	countOutcomes bool
	// standby says that the method only reads, and may read from a standby: its handler reads from
	// call.db. For a look-up of one row, asking the standby how far it is would cost more than the
	// look-up.
	standby bool
}

// violation is a broken rule of one field, and the error name of its answer. field is the path
// without an index.
type violation struct {
	field string
	rule  lexcodec.Rule
	name  string
}

// tokenUse says where a request's service-auth token is used up, so that it is good for one
// request.
type tokenUse int

const (
	reusable       tokenUse = iota // nowhere: the same token can call the method again
	usedByDispatch                 // in admit (dispatch.go), before the handler runs
	usedByHandler                  // in the handler, so that a copy of the request can get the first answer
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// Longest bodies, in bytes.
const (
	bodySignal   = 16 * kib
	bodySmall    = 256 * kib
	bodyReport   = 512 * kib // 256 KiB of a sealed report, in base64
	bodyPackages = 3 * mib   // 100 KeyPackages of 20 KiB each, in base64
	bodyCommit   = 14 * mib  // a commit, a Welcome and a GroupInfo of 10 MiB together, in base64
	bodyPart     = attachments.PartSize
	bodyMessage  = 15 * mib // 10 MiB of ciphertext in base64, and the other fields
)

// Memory of answers, in bytes. It includes the rows from which an answer is made.
const (
	answerSmall  = 4 * kib
	answerCounts = 128 * kib   // one entry for each KeyPackage, cipher suite or device
	answerRoster = 256 * kib   // a convo with 1,000 members
	answerObject = 4 * mib     // a Welcome, a GroupInfo, or the KeyPackages of a claim; see holdObjects for larger ones
	answerPage   = 512 * kib   // at first; holdObjects and list.add extend it
	answerBytes  = answerPiece // one piece at a time
)

// The longest times of attachment requests.
const (
	maxUpload   = 2 * time.Minute  // for one part, from a client as slow as uploadPace allows
	maxComplete = 45 * time.Second // the work goes on if the client hangs up
)

// costStream is what a method that keeps a connection open costs, in units of the rate limit of a
// DID.
const costStream = 4

// Costs of the methods for the caller's own data, in units. unitExport sets what the reading of an
// export costs in addition.
const (
	costExport = 5
	costErase  = 20
)

// costHead is what a head of a log or a proof costs, in units: a few reads and one signature.
// Hashing the log costs more, by the number of bytes.
const costHead = 2

// costComplete is what the completion of an attachment costs, in units. The bytes that it reads
// were paid for when they were uploaded.
const costComplete = 4

// costFind is what a look-up of a person's delivery service costs, in units: it fetches at most
// three documents.
const costFind = 10

// costSession is what buying or refreshing a session costs, in units: a look-up of a DID document.
const costSession = 10

// States of accounts that some methods serve.
var (
	notActive = []accounts.Status{accounts.Deactivated, accounts.Suspended, accounts.TakenDown, accounts.Deleted}
	// orErasing is for the method that begins an erasure: a repeated request gets the first answer.
	orErasing = append(slices.Clip(notActive), accounts.Erasing)
)

// Lifetimes of idempotency records. After its lifetime a key is new again. Then only the write's
// own check prevents a double effect: docs/IDEMPOTENCY.md lists these checks.
const (
	recordDay   = 24 * time.Hour
	recordHour  = time.Hour
	recordClaim = 30 * time.Minute // as long as the claim of a KeyPackage
	leaseShort  = time.Minute      // for work outside the database
)

// Floors of lifetimes that an operator can set.
var (
	// minAnswer is for writes whose own check always prevents a second effect, but answers a
	// repeated request with an error.
	minAnswer = idem.Floor{Life: time.Hour, Because: "a token can be valid for an hour, so a copy of the request can arrive that late and must get its first answer"}
	// minTarget is for writes that, if repeated, undo a later write.
	minTarget = idem.Floor{Life: time.Hour, Because: "a token can be valid for an hour, so a copy of the request can arrive that late and must not undo a later one"}
	// minUpload is for completeAttachment, whose record holds the fencing token.
	minUpload = idem.Floor{Life: 2 * attachments.UnfinishedLife, Because: "an upload can go on for a day after its last part, and its record has the fence"}
	// minClaim is for getKeyPackages: without its record, a repeated request claims other
	// KeyPackages.
	minClaim = idem.Floor{Life: recordClaim, Because: "without its record a repetition claims other KeyPackages while the first claim still lasts"}
)

// methods maps the NSID of each method of the lexicons to its policy. The NSID is also the method's
// label in the metrics. sendMessage has no record, because the message itself is its record, and
// lasts as long.
var methods = map[string]policy{
	nsid.AcceptConvo: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.AddMembers: {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer,
		violations: []violation{{"didList", lexcodec.RuleMaxLength, mlsapi.ErrTooManyMembers}}},
	nsid.AcceptInvitation: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.BlockActor:       {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.CompleteAttachment: {maxBody: bodySmall, answerMemory: answerSmall, cost: costComplete, expensive: true, token: usedByDispatch, maxTime: maxComplete,
		recordLife: idem.DefaultLife, minLife: minUpload, lease: leaseShort},
	nsid.ConfirmWelcome:   {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	nsid.CreateAttachment: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.CreateConvo: {maxBody: bodyCommit, answerMemory: answerRoster, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer,
		violations: []violation{{"initialMembers", lexcodec.RuleMaxLength, mlsapi.ErrTooManyMembers}}},
	// A session cannot get another session. So a stolen session works for an hour at most.
	nsid.CreateSession:     {maxBody: bodySmall, answerMemory: answerSmall, cost: costSession, token: usedByDispatch, noSession: true},
	nsid.DeclineInvitation: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.DeleteAttachment:  {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.DemoteAdmin:       {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.DeliverErasure:    {maxBody: bodySmall, answerMemory: answerSmall, cost: costErase, expensive: true, token: usedByDispatch, noSession: true, services: true},
	nsid.DeliverInvitation: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, noSession: true, services: true},
	nsid.DeleteSession:     {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	// The record of the first step holds the token, so its lifetime is as short as possible. The
	// token itself is the record of the second step.
	nsid.EraseMyAccount: {maxBody: bodySmall, answerMemory: answerSmall, cost: costErase, token: usedByDispatch, noSession: true,
		recordLife: recordHour, minLife: minAnswer, serves: orErasing},
	nsid.ExportMyData:        {answerMemory: answerPage, cost: costExport, serves: notActive, standby: true},
	nsid.GetAttachment:       {answerMemory: answerBytes},
	nsid.GetAttachmentStatus: {answerMemory: answerSmall},
	nsid.GetBlocks:           {answerMemory: answerCounts, standby: true},
	nsid.GetCommits:          {answerMemory: answerPage, standby: true},
	nsid.GetConvo:            {answerMemory: answerRoster, standby: true},
	nsid.GetConvos:           {answerMemory: answerPage, expensive: true, standby: true},
	nsid.GetCursorPolicy:     {answerMemory: answerSmall},
	nsid.GetCursors:          {answerMemory: answerRoster, standby: true},
	// A request can cause look-ups at hosts that its caller chooses.
	nsid.GetDeliveryService:  {answerMemory: answerSmall, cost: costFind},
	nsid.GetEpoch:            {answerMemory: answerSmall},
	nsid.GetGroupInfo:        {answerMemory: answerObject, standby: true},
	nsid.GetInvitationPolicy: {answerMemory: answerSmall},
	nsid.GetInvitations:      {answerMemory: answerCounts, standby: true},
	nsid.GetKeyPackageStats:  {answerMemory: answerCounts, standby: true},
	nsid.GetKeyPackages: {answerMemory: answerObject, expensive: true, token: usedByHandler, recordLife: recordClaim, minLife: minClaim,
		maxLife: keypackages.KeepEnded, // its records refer to KeyPackages
		violations: []violation{
			{"dids", lexcodec.RuleMaxLength, mlsapi.ErrTooManyDids},
			{"dids", lexcodec.RuleFormat, mlsapi.ErrInvalidDid},
		}},
	// A request reads the log from the last signed head on, and signs a new head.
	nsid.GetLogHead:            {answerMemory: answerCounts, expensive: true, cost: costHead},
	nsid.GetLogProof:           {answerMemory: answerSmall, expensive: true, cost: costHead},
	nsid.GetMessages:           {answerMemory: answerPage, standby: true},
	nsid.GetOwnKeyPackages:     {answerMemory: answerCounts},
	nsid.GetPushKey:            {answerMemory: answerSmall},
	nsid.GetReportKey:          {answerMemory: answerSmall},
	nsid.GetSubscriptionTicket: {answerMemory: answerSmall, token: usedByDispatch},
	nsid.GetWelcome:            {answerMemory: answerObject, countOutcomes: true},
	nsid.GetWelcomeStatus:      {answerMemory: answerCounts},
	nsid.LeaveConvo:            {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.ProcessExternalCommit: {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.PromoteAdmin:          {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.PublishGroupInfo:      {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.PublishKeyPackage: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer,
		violations: []violation{
			{"keyPackage", lexcodec.RuleMaxLength, mlsapi.ErrInvalidKeyPackage},
			{"keyPackage", lexcodec.RuleFormat, mlsapi.ErrInvalidKeyPackage},
		}},
	nsid.PublishKeyPackages: {maxBody: bodyPackages, answerMemory: answerCounts, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer,
		violations: []violation{{"keyPackages", lexcodec.RuleMaxLength, mlsapi.ErrTooManyKeyPackages}}},
	nsid.PutAttachmentPart: {maxBody: bodyPart, answerMemory: answerSmall, token: usedByDispatch, maxTime: maxUpload},
	// The refresh token must belong to the session of the request. A service-auth token passes the
	// checks of dispatch.go, and the handler refuses it.
	nsid.RefreshSession: {maxBody: bodySmall, answerMemory: answerSmall, cost: costSession, token: usedByDispatch},
	nsid.RegisterPushTarget: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget,
		violations: []violation{
			{"url", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
			{"token", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
			{"topic", lexcodec.RuleMaxLength, mlsapi.ErrInvalidPushTarget},
		}},
	nsid.ReportConvo:  {maxBody: bodyReport, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
	nsid.ReportCommit: {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.ReportEpoch:  {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch},
	nsid.ResetConvo:   {maxBody: bodyCommit, answerMemory: answerRoster, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.SendMessage: {maxBody: bodyMessage, answerMemory: answerSmall, token: usedByHandler,
		violations: []violation{
			{"ciphertext", lexcodec.RuleMaxLength, mlsapi.ErrMessageTooLarge},
			{"embedUri", lexcodec.RuleFormat, mlsapi.ErrInvalidAsset},
			{"embedType", lexcodec.RuleMaxLength, mlsapi.ErrInvalidAsset},
		}},
	// If a signal is dropped at once, its token is not used up, because that would write a row.
	nsid.SendSignal: {maxBody: bodySignal, answerMemory: answerSmall, token: usedByHandler,
		violations: []violation{{"payload", lexcodec.RuleMaxLength, mlsapi.ErrMessageTooLarge}}},
	nsid.UpdateConvo:          {maxBody: bodySmall, answerMemory: answerRoster, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.SetCursorPolicy:      {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.SetInvitationPolicy:  {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.StreamConvoEvents:    {cost: costStream},
	nsid.SubmitCommit:         {maxBody: bodyCommit, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: idem.DefaultLife, minLife: minAnswer},
	nsid.SubscribeConvoEvents: {cost: costStream},
	nsid.UnblockActor:         {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.UnregisterPushTarget: {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch, recordLife: recordDay, minLife: minTarget},
	nsid.UpdateCursor:         {maxBody: bodySmall, answerMemory: answerSmall, token: usedByDispatch},
	nsid.WithdrawKeyPackages:  {maxBody: bodySmall, answerMemory: answerSmall, expensive: true, token: usedByDispatch, recordLife: recordDay, minLife: minAnswer},
}

// route is a method with the way to serve it and its policy.
type route struct {
	mlsapi.Route[*call]
	policy
}

// routes returns the routes by NSID, with the lifetimes that are set.
func routes(lifetimes idem.Lifetimes) map[string]*route {
	all := map[string]*route{}
	for _, r := range mlsapi.Routes[*call]() {
		p := methods[r.Method.NSID]
		if o, set := lifetimes[r.Method.NSID]; set {
			p.recordLife = o.Life
		}
		p.cost = max(p.cost, 1)
		all[r.Method.NSID] = &route{r, p}
	}
	return all
}

// nameOf returns the method's own error name for a broken rule, or "".
func (p *policy) nameOf(v *lexcodec.Violation) string {
	field, _, _ := strings.Cut(v.Field, "[")
	for _, own := range p.violations {
		if own.field == field && own.rule == v.Rule {
			return own.name
		}
	}
	return ""
}

// Lifetimes returns the default lifetimes of all operations: the general default, and the lifetimes
// of methods that write records, of push jobs and of invitations.
func Lifetimes() idem.Lifetimes {
	operations := []idem.Operation{idem.Default, idem.Push, idem.Invitation}
	for name, p := range methods {
		if p.recordLife != 0 {
			operations = append(operations, idem.Operation{NSID: name, Life: p.recordLife, Least: p.minLife, Most: p.maxLife, Lease: p.lease})
		}
	}
	return idem.NewLifetimes(operations...)
}

// RetireKeys implements [idem.Retire] for all methods: it retires the keys of convos, commits and
// KeyPackages.
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	for _, retire := range []idem.Retire{convos.RetireKeys, messages.RetireKeys, keypackages.RetireKeys} {
		if err := retire(ctx, tx, keys); err != nil {
			return err
		}
	}
	return nil
}
