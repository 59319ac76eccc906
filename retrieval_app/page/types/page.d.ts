// Names that every module of the page may use in its comments; what the API answers is named in api.d.ts.

import type * as api from './api';
import type * as routes from './routes';

declare global {
  // The page has no elements but HTML's, and its SVG drawings, which it never looks for.
  interface ParentNode {
    querySelector<E extends Element = HTMLElement>(selectors: string): E | null;
    querySelectorAll<E extends Element = HTMLElement>(selectors: string): NodeListOf<E>;
  }
  interface Element {
    closest<E extends Element = HTMLElement>(selectors: string): E | null;
  }

  type Accepted = api.Accepted;
  type ClassEntry = api.ClassEntry;
  type Confusion = api.Confusion;
  type CertificateState = api.CertificateState;
  type LabelIssueEntry = api.LabelIssueEntry;
  type FacetEntry = api.FacetEntry;
  type GalleryFacts = api.GalleryFacts;
  type GalleryMap = api.GalleryMap;
  type GroupDecision = api.GroupDecisionEntry;
  type GroupEntry = api.GroupEntry;
  type GroupImage = api.DuplicateImage;
  type ImageDetails = api.ImageDetails;
  /** One that the page has just made says nothing of who made it. */
  type LabelDecision = Pick<api.LabelDecisionEntry, 'decision' | 'label'> & Partial<api.LabelDecisionEntry>;
  type QualityReport = api.QualityReport;
  type RecallEntry = api.RecallEntry;
  type ScoreHistogram = api.ScoreHistogram;
  type SearchHit = api.SearchHit;
  type WordsAnswer = api.WordsAnswer;
  type WorstQueryEntry = api.WorstQueryEntry;

  type AnswerOf<Path, Method> = routes.AnswerOf<Path, Method>;
  type ParametersOf<Path, Method> = routes.ParametersOf<Path, Method>;
  type BodyOf<Path> = routes.BodyOf<Path>;
  type Stoppable = {signal?: AbortSignal};

  /** What can stand within an element; null, undefined and booleans are left out. */
  type Child = Node | string | number | boolean | null | undefined | Child[];

  /** HTMLAnchorElement of 'a' as of 'a.chip'. */
  type ElementOf<Tag extends string> = Tag extends `${infer Name}.${string}`
    ? ElementOf<Name>
    : Tag extends keyof HTMLElementTagNameMap
      ? HTMLElementTagNameMap[Tag]
      : never;

  interface Props {
    class?: string;
    dataset?: Record<string, string | number>;
    style?: Record<string, string | number>;
    [name: string]: any;
  }

  interface ButtonProps extends Props {
    icon?: string | null;
    iconOnly?: boolean;
  }

  /** A button of a dialog or of a message. */
  interface Action {
    text: string;
    class?: string;
    run?: () => void;
  }

  type Role = 'like' | 'more' | 'less';
  type Crop = {x: number; y: number; width: number; height: number};

  /** A part of the query: an image of the gallery, a photo that was sent, or words. */
  type Part = (
    | {image: number; photo?: undefined; words?: undefined}
    | {photo: string; image?: undefined; words?: undefined}
    | {words: string; image?: undefined; photo?: undefined}
  ) & {role: Role; crop: Crop | null};

  /** What the address says. */
  interface State {
    view: string;
    parts: Part[];
    text: string;
    filters: string[];
    k: number;
    min: number | null;
    collapse: string;
    by: 'semantic' | 'copy';
    sort: string;
    ids: number[];
    details: number | null;
    extra: Record<string, string | null | undefined>;
  }

  /** A result: of a search it has all that a hit has. */
  type Item = api.ImageEntry & Partial<SearchHit> & {duplicateOf?: number};
}
