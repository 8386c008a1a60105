package operator

import "context"

// didShow is the action of looking at a page of the console with DIDs in full. It is no method: the
// console records it.
var didShow = Method{Noun: "did", Verb: "show", Params: []Param{{Name: "page"}}, Write: true}

// RecordShown leaves a row in admin_actions: an operator is about to see DIDs in full. page is the
// address of the page, or what else shows them. Error: operator or reason is missing.
func (s *Service) RecordShown(ctx context.Context, page, operator, reason string) error {
	c, err := didShow.NewCall(map[string]string{"page": page, operatorField: operator, reasonField: reason})
	if err != nil {
		return err
	}
	id, err := begin(ctx, s.c.DB, didShow, c)
	if err != nil {
		return err
	}
	return end(ctx, s.c.DB, id, nil)
}
