"""Small networks that draft from a target's hidden rows: trained by ``train``, run by ``drafters``."""
