"""All routes of the API."""

from __future__ import annotations

from retrieval_app.api import health_routes, metrics_routes
from retrieval_app.api.gallery import gallery_routes, write_routes
from retrieval_app.api.images import image_routes
from retrieval_app.api.review import review_routes
from retrieval_app.api.search import search_routes

ROUTES = (
    search_routes, image_routes, gallery_routes, review_routes, write_routes, health_routes, metrics_routes,
)  # fmt: skip
OPEN_ROUTES = (health_routes,)
"""Those that ask for no token."""
