package report

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"path/filepath"

	"github.com/fencectl/fencectl/internal/audit"
)

// The parts of SARIF 2.1.0 (docs.oasis-open.org/sarif/sarif/v2.1.0) that an audit fills.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool              sarifTool         `json:"tool"`
		AutomationDetails sarifAutomation   `json:"automationDetails"`
		Invocations       []sarifInvocation `json:"invocations"`
		ColumnKind        string            `json:"columnKind,omitempty"`
		Results           []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string             `json:"id"`
		ShortDescription sarifText          `json:"shortDescription"`
		FullDescription  sarifText          `json:"fullDescription"`
		HelpURI          string             `json:"helpUri"`
		Help             sarifText          `json:"help"`
		Default          sarifConfiguration `json:"defaultConfiguration"`
	}
	sarifConfiguration struct {
		Level string `json:"level"`
	}
	sarifAutomation struct {
		ID string `json:"id"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		EndTimeUTC    string              `json:"endTimeUtc"`
		Notifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level   string          `json:"level"`
		Message sarifText       `json:"message"`
		Rule    *sarifReference `json:"associatedRule,omitempty"`
	}
	sarifReference struct {
		ID    string `json:"id"`
		Index int    `json:"index"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
		Properties   sarifProperties   `json:"properties"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
	sarifLogical struct {
		Name          string `json:"name"`
		QualifiedName string `json:"fullyQualifiedName"`
		Kind          string `json:"kind"`
	}
	sarifProperties struct {
		Key string `json:"key"`
		Fix string `json:"fix"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
)

const (
	sarifSchema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	homepage    = "https://github.com/fencectl/fencectl"

	// settingsName is the project's file where it has none.
	settingsName = "fencectl.yaml"
)

// SARIF writes the document as a SARIF 2.1.0 log: one run for each database.
//
// A finding is about an object of a database, which is its logical location. Code scanning shows nothing without a file, so the
// project's is its physical one: that is where its required tables and exemptions are.
func SARIF(w io.Writer, d *Document) error {
	log := sarifLog{Schema: sarifSchema, Version: "2.1.0"}
	ids := map[string]int{}
	for i := range d.Databases {
		database := &d.Databases[i]
		// Runs of the same category replace one another where they are uploaded to.
		id := "fencectl/" + url.PathEscape(cmp.Or(database.Name, database.Address))
		if ids[id]++; ids[id] > 1 {
			id += fmt.Sprintf("-%d", ids[id])
		}
		log.Runs = append(log.Runs, sarifRunOf(d, database, id+"/"))
	}
	return encode(w, log)
}

func sarifRunOf(d *Document, database *Database, id string) sarifRun {
	index := map[string]int{}
	driver := sarifDriver{Name: "fencectl", Version: d.Program, InformationURI: homepage, Rules: []sarifRule{}}
	for i, rule := range audit.Rules() {
		index[rule.Name] = i
		driver.Rules = append(driver.Rules, sarifRule{
			ID: rule.Name, ShortDescription: sarifText{rule.Name}, FullDescription: sarifText{rule.Why}, HelpURI: rule.Docs(),
			Help: sarifText{rule.Why + " See " + rule.Docs()}, Default: sarifConfiguration{sarifLevel(rule.Severity)},
		})
	}
	run := sarifRun{Tool: sarifTool{driver}, AutomationDetails: sarifAutomation{id}, Results: []sarifResult{}}
	invocation := sarifInvocation{
		Successful: database.Report != nil, EndTimeUTC: d.At.UTC().Format("2006-01-02T15:04:05Z"), Notifications: []sarifNotification{},
	}
	notify := func(level, text string, rule *sarifReference) {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{level, sarifText{text}, rule})
	}
	if database.Report == nil {
		notify("error", database.Error, nil)
		run.Invocations = []sarifInvocation{invocation}
		return run
	}
	for _, e := range database.Report.Ended {
		notify("warning", Sentence(e), nil)
	}
	for _, s := range database.Report.Skipped {
		notify("note", "not checked: "+s.Reason, &sarifReference{s.Rule, index[s.Rule]})
	}
	run.Invocations = []sarifInvocation{invocation}

	settings := (&url.URL{Path: filepath.ToSlash(cmp.Or(d.Settings, settingsName))}).String()
	for _, f := range database.Report.Findings {
		run.Results = append(run.Results, sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: sarifLevel(f.Severity),
			Message: sarifText{f.Object + " " + f.Message + "\n\n" + f.Why + "\n\nFix: " + f.Fix},
			Locations: []sarifLocation{{
				Physical: sarifPhysical{sarifArtifact{settings}, sarifRegion{StartLine: 1}},
				Logical:  []sarifLogical{{Name: f.Object, QualifiedName: database.Name + "." + f.Object, Kind: "resource"}},
			}},
			Fingerprints: map[string]string{"fencectlKey/v1": f.Key},
			Properties:   sarifProperties{Key: f.Key, Fix: f.Fix},
		})
	}
	return run
}

func sarifLevel(severity audit.Severity) string {
	switch severity {
	case audit.Error:
		return "error"
	case audit.Warning:
		return "warning"
	default:
		return "note"
	}
}
